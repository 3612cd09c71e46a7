/* SPDX-License-Identifier: Apache-2.0
 *
 * Many cheap launches without a limit, for each line of input:  LAUNCHES DEVICE  makes so many in the primary context
 * of the device, which is made current first if it is not.  Answers "done".
 */
#include "books.h"

static const char ptx[] =
	".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";

static CUfunction prepare(int device)
{
	static CUfunction made[2];
	static CUcontext context[2];
	CUmodule module;
	if (!made[device]) {
		OK(cuDevicePrimaryCtxRetain(&context[device], device));
		OK(cuCtxSetCurrent(context[device]));
		OK(cuModuleLoadData(&module, ptx));
		OK(cuModuleGetFunction(&made[device], module, "gpulimit_spin"));
	}
	OK(cuCtxSetCurrent(context[device]));
	return made[device];
}

int main(void)
{
	uint64_t kernel_ns = 5000, out = 0;
	void *params[] = {&kernel_ns, &out};
	int launches, device;
	OK(cuInit(0));
	while (scanf("%d %d", &launches, &device) == 2) {
		CUfunction f = prepare(device);
		for (int i = 0; i < launches; i++)
			OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
		OK(cuCtxSynchronize());
		printf("done\n");
		fflush(stdout);
	}
	return failures != 0;
}
