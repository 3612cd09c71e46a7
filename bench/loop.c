/* SPDX-License-Identifier: Apache-2.0
 *
 * What one driver call costs the host: prints the median ns per call over many short batches, so that neither a full
 * queue nor a preempted batch counts.  Usage: loop launch|malloc|sync.  Links the driver plainly.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../csrc/abi.h"

CUresult cuInit(unsigned int);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);

static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry empty(){ret;}\n";
enum { BATCHES = 2000, BATCH = 200 };

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void check(CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "%s: error %d\n", call, result);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	static double took[BATCHES];
	const char *what = argc > 1 ? argv[1] : "launch";
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction empty;
	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	check(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
	check(cuModuleGetFunction(&empty, module, "empty"), "cuModuleGetFunction");
	int batches = strcmp(what, "malloc") == 0 ? 200 : BATCHES, batch = strcmp(what, "malloc") == 0 ? 20 : BATCH;
	for (int i = 0; i < batches; i++) {
		double start = now_ns();
		for (int j = 0; j < batch; j++) {
			if (strcmp(what, "malloc") == 0) {
				CUdeviceptr p;
				check(cuMemAlloc_v2(&p, 1 << 20), "cuMemAlloc");
				check(cuMemFree_v2(p), "cuMemFree");
			} else {
				check(cuLaunchKernel(empty, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
				if (strcmp(what, "sync") == 0)
					check(cuCtxSynchronize(), "cuCtxSynchronize");
			}
		}
		took[i] = (now_ns() - start) / batch;
		check(cuCtxSynchronize(), "cuCtxSynchronize");
	}
	qsort(took, (size_t)batches, sizeof *took, by_value);
	printf("%.1f\n", took[batches / 2]);
	return 0;
}
