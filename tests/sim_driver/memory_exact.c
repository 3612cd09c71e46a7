/* SPDX-License-Identifier: Apache-2.0
 *
 * On the card that counts to the byte, every path takes and gives back exactly what it should, a full card
 * refuses, and a refusal writes no output.  Needs GPULIMIT_SIM_PROFILE=small.
 */
#include "driver.h"

#define CARD (4ull << 30)
#define MARK 0x5a5a5a5aull

static void plain(void)
{
	CUdeviceptr a, b = MARK;
	OK(cuMemAlloc_v2(&a, CARD - 1000));
	SAME(CARD - 1000, used());
	EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&b, 1001));
	SAME(MARK, b);
	OK(cuMemAlloc_v2(&b, 1000));
	SAME(CARD, used());
	OK(cuMemFree_v2(a));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(a));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(b + 1));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(0x1234));
	OK(cuMemFree_v2(b));
	OK(cuMemFree_v2(0));
	SAME(0, used());
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&a, 0));
	EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&a, SIZE_MAX));
}

static void pitched_and_old(void)
{
	CUdeviceptr a;
	CUdeviceptr_v1 low;
	size_t pitch;
	OK(cuMemAllocPitch_v2(&a, &pitch, 100, 7, 4));
	SAME(512, pitch);
	SAME(512 * 7, used());
	OK(cuMemFree_v2(a));
	OK(cuMemAlloc(&low, 4096));
	SAME(4096, used());
	OK(cuMemsetD8_v2(low, 1, 4096));
	OK(cuMemFree(low));
	SAME(0, used());
}

static void managed_and_host(void)
{
	CUdeviceptr a;
	void *p;
	OK(cuMemAllocManaged(&a, 2 * CARD, 1)); /* may exceed the card */
	SAME(0, used());
	OK(cuMemsetD8_v2(a, 1, 10000));
	SAME(10000, used());
	OK(cuMemFree_v2(a));
	OK(cuMemAllocHost_v2(&p, 1 << 20));
	SAME(0, used());
	OK(cuMemFreeHost(p));
	SAME(0, used());
}

static void arrays(void)
{
	CUarray array;
	CUmipmappedArray mipmap;
	CUDA_ARRAY_DESCRIPTOR flat = { 100, 10, CU_AD_FORMAT_FLOAT, 1 };
	CUDA_ARRAY3D_DESCRIPTOR solid = { 64, 64, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0 };
	OK(cuArrayCreate_v2(&array, &flat));
	SAME(448 * 10, used());
	OK(cuArrayDestroy(array));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(array));
	OK(cuMipmappedArrayCreate(&mipmap, &solid, 3));
	SAME(256 * 64 + 128 * 32 + 64 * 16, used());
	OK(cuMipmappedArrayDestroy(mipmap));
	SAME(0, used());
}

static void pools(void)
{
	CUmemoryPool pool;
	CUdeviceptr a, b;
	cuuint64_t value, keep = 5000;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemAllocAsync(&a, 3000, NULL));
	OK(cuMemAllocAsync(&b, 4000, NULL));
	SAME(7000, used());
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
	SAME(7000, value);
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuMemFreeAsync(b, NULL));
	SAME(7000, used());
	OK(cuStreamSynchronize(NULL));
	SAME(5000, used());
	OK(cuMemPoolTrimTo(pool, 0));
	SAME(3000, used());
	OK(cuMemFreeAsync(a, NULL));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(a, NULL));
	OK(cuMemPoolTrimTo(pool, 0));
	SAME(0, used());
	CUmemPoolProps props = { .allocType = 1, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, .maxSize = 1 << 20 };
	OK(cuMemPoolCreate(&pool, &props));
	EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&a, (1 << 20) + 1, pool, NULL));
	OK(cuMemAllocFromPoolAsync(&a, 1 << 20, pool, NULL));
	OK(cuMemPoolDestroy(pool)); /* goes with its last allocation */
	SAME(1 << 20, used());
	OK(cuMemFreeAsync(a, NULL));
	SAME(0, used());
}

static void virtual_memory(void)
{
	const size_t size = 4 << 20;
	CUmemAllocationProp prop = { .type = 1, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, 3 };
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr at;
	unsigned int word = 7, back = 0;
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, size + 1, &prop, 0));
	OK(cuMemCreate(&handle, size, &prop, 0));
	SAME(size, used());
	OK(cuMemAddressReserve(&at, 2 * size, 0, 0, 0));
	OK(cuMemMap(at, size, 0, handle, 0));
	OK(cuMemMap(at + size, size, 0, handle, 0)); /* the same memory a second time */
	OK(cuMemSetAccess(at, 2 * size, &access, 1));
	OK(cuMemcpyHtoD_v2(at + 4096, &word, 4));
	OK(cuMemcpyDtoH_v2(&back, at + size + 4096, 4));
	SAME(7, back);
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(at, size, 0, handle, 0));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(at, 2 * size));
	OK(cuMemRelease(handle));
	SAME(size, used());
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
	OK(cuMemUnmap(at, 2 * size));
	SAME(size, used());
	OK(cuMemRelease(again));
	SAME(0, used());
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRelease(again));
	OK(cuMemAddressFree(at, 2 * size));
}

static void graph_memory(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode alloc, release;
	CUDA_MEM_ALLOC_NODE_PARAMS params = { .bytesize = 12345, .poolProps = { .allocType = 1, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } } };
	cuuint64_t value;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	SAME(0, used());
	OK(cuGraphLaunch(exec, NULL));
	SAME(12345, used());
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, NULL)); /* not freed since */
	OK(cuMemFreeAsync(params.dptr, NULL));
	OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value));
	SAME(12345, value);
	SAME(12345, used());
	OK(cuDeviceGraphMemTrim(0));
	OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value));
	SAME(0, value);
	SAME(0, used());
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphAddMemFreeNode(&release, graph, &alloc, 1, params.dptr));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (int i = 0; i < 3; i++)
		OK(cuGraphLaunch(exec, NULL));
	SAME(12345, used());
	OK(cuDeviceGraphMemTrim(0));
	SAME(0, used());
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

int main(void)
{
	CUdeviceptr left;
	start();
	SAME(0, used());
	plain();
	pitched_and_old();
	managed_and_host();
	arrays();
	pools();
	virtual_memory();
	graph_memory();
	OK(cuMemAlloc_v2(&left, 1000));
	OK(cuMemAllocAsync(&left, 1000, NULL));
	OK(cuDevicePrimaryCtxReset_v2(0)); /* a context takes its memory along */
	start();
	SAME(0, used());
	return done();
}
