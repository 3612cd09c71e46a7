/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps a card busy through more streams than the library measures, in turn.
 *
 * Usage: many_streams STREAMS SECONDS KERNEL_NS
 */
#include "any_memory.h"

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";

int main(int argc, char **argv)
{
	static CUstream stream[4096];
	CUcontext context;
	CUmodule module;
	CUfunction function;
	uint64_t kernel_ns, out = 0;
	void *params[] = {&kernel_ns, &out};
	int streams;
	if (argc < 4 || (streams = atoi(argv[1])) > 4096)
		return 2;
	kernel_ns = strtoull(argv[3], NULL, 0);
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&function, module, "gpulimit_spin"));
	for (int i = 0; i < streams; i++)
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
	puts("ready");
	fflush(stdout);
	uint64_t end = any_now_ns() + (uint64_t)(atof(argv[2]) * 1e9);
	/* By another block each, so that what one stream's launches cost says nothing of another's. */
	for (int i = 0; any_now_ns() < end && !failures; i = (i + 1) % streams)
		OK(cuLaunchKernel(function, 1 + (unsigned)(i / 32), 1, 1, 32 + (unsigned)(i % 32), 1, 1, 0, stream[i], params, NULL));
	OK(cuCtxSynchronize());
	return failures != 0;
}
