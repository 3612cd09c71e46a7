/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches as told.  For each line of input:  STREAM LAUNCHES NS WAIT  makes so many launches of kernels of so many ns,
 * one after the other, in one of four streams, and waits until they are done if WAIT is not 0.  Answers "done".
 */
#include "any_memory.h"

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";

int main(void)
{
	CUcontext context;
	CUmodule module;
	CUfunction f;
	CUstream stream[4];
	int which, launches, wait;
	unsigned long long ns;
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&f, module, "gpulimit_spin"));
	for (int i = 0; i < 4; i++)
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
	while (scanf("%d %d %llu %d", &which, &launches, &ns, &wait) == 4) {
		uint64_t kernel_ns = ns, out = 0;
		void *params[] = {&kernel_ns, &out};
		for (int i = 0; i < launches; i++)
			OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream[which % 4], params, NULL));
		if (wait)
			OK(cuCtxSynchronize());
		printf("done\n");
		fflush(stdout);
	}
	return failures != 0;
}
