/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets errno before each call and says which calls changed it.  Some are the driver's own doing, so the output is
 * compared with a run without the library.
 */
#include <errno.h>

#include "books.h"

#define KEEPS(call)                                             \
	do {                                                    \
		errno = 1234;                                   \
		int r_ = (int)(call);                           \
		if (errno != 1234)                              \
			printf("%s: %d\n", #call, errno);       \
		printf("%s = %d\n", #call, r_);                 \
	} while (0)

int main(void)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry plain() { ret; }\n";
	CUcontext context, second;
	CUdeviceptr p, q;
	CUmodule module;
	CUfunction f;
	CUstream stream;
	CUgraph graph;
	CUgraphExec exec;
	CUmemoryPool pool;
	CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp vmm = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	nvmlDevice_t device;
	nvmlMemory_t memory;
	nvmlProcessInfo_v2_t info[64];
	unsigned int count = 64;
	size_t free, total;
	KEEPS(cuInit(0));
	KEEPS(cuDevicePrimaryCtxRetain(&context, 0));
	KEEPS(cuCtxSetCurrent(context));
	KEEPS(cuDeviceTotalMem_v2(&total, 0));
	KEEPS(cuMemGetInfo_v2(&free, &total));
	KEEPS(cuCtxCreate_v2(&second, 0, 0));
	KEEPS(cuCtxDestroy_v2(second));
	KEEPS(cuMemAlloc_v2(&p, 1 << 20));
	KEEPS(cuMemAlloc_v2(&q, (size_t)1 << 40));
	KEEPS(cuMemFree_v2(p));
	KEEPS(cuMemFree_v2(12345));
	KEEPS(cuMemAllocManaged(&p, 1 << 20, 1));
	KEEPS(cuMemFree_v2(p));
	KEEPS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	KEEPS(cuMemAllocAsync(&p, 1 << 20, stream));
	KEEPS(cuMemFreeAsync(p, stream));
	KEEPS(cuMemPoolCreate(&pool, &props));
	KEEPS(cuMemAllocFromPoolAsync(&p, 1 << 20, pool, stream));
	KEEPS(cuMemFreeAsync(p, stream));
	KEEPS(cuMemPoolDestroy(pool));
	KEEPS(cuMemCreate(&handle, 2 << 20, &vmm, 0));
	KEEPS(cuMemRelease(handle));
	KEEPS(cuModuleLoadData(&module, ptx));
	KEEPS(cuModuleGetFunction(&f, module, "plain"));
	KEEPS(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
	for (int i = 0; i < 2000; i++) { /* long enough to be held back under a limit */
		errno = 1234;
		(void)cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
		if (errno != 1234)
			printf("launch %d: %d\n", i, errno);
	}
	KEEPS(cuStreamBeginCapture_v2(stream, 0));
	KEEPS(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
	KEEPS(cuStreamEndCapture(stream, &graph));
	KEEPS(cuGraphInstantiateWithFlags(&exec, graph, 0));
	KEEPS(cuGraphLaunch(exec, stream));
	KEEPS(cuGraphExecDestroy(exec));
	KEEPS(cuStreamDestroy_v2(stream));
	KEEPS(nvmlInit_v2());
	KEEPS(nvmlDeviceGetHandleByIndex_v2(0, &device));
	KEEPS(nvmlDeviceGetMemoryInfo(device, &memory));
	KEEPS(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, info));
	KEEPS(cuDevicePrimaryCtxReset_v2(0));
	return 0;
}
