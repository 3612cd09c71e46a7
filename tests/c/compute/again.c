/* SPDX-License-Identifier: Apache-2.0
 *
 * A context that is ended and made again, as a program that resets its device does: the limit holds in each, although
 * the handle may be the same and everything recorded in the first has gone with it.  Prints, for each round, the
 * percent of the wall time that its kernels of 2 ms took.
 */
#include <time.h>

#include "books.h"

static const char ptx[] =
	".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";
static uint64_t kernel_ns = 2000000;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void one_round(CUdevice dev)
{
	uint64_t out = 0;
	void *params[] = {&kernel_ns, &out};
	CUcontext context;
	CUmodule module;
	CUfunction f;
	int launched = 0;
	OK(cuDevicePrimaryCtxRetain(&context, dev));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&f, module, "gpulimit_spin"));
	double start = now();
	for (; now() - start < 1.5; launched++)
		OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
	OK(cuCtxSynchronize());
	printf("%.1f\n", launched * (double)kernel_ns / 1e7 / (now() - start));
	OK(cuDevicePrimaryCtxReset_v2(dev));
}

int main(void)
{
	CUdevice dev;
	OK(cuInit(0));
	OK(cuDeviceGet(&dev, 0));
	for (int round = 0; round < 3; round++)
		one_round(dev);
	return failures != 0;
}
