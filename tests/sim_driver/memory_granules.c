/* SPDX-License-Identifier: Apache-2.0
 *
 * On the H100 profile memory goes in the pieces that were measured: 518 MiB a context, granules of 2 MiB
 * that small allocations share, pools in steps of 32 MiB.
 */
#include "driver.h"

#define MIB (1ull << 20)

int main(void)
{
	CUcontext second;
	CUdeviceptr a, b, c;
	CUmemoryPool pool;
	cuuint64_t reserved;
	nvmlDevice_t device;
	nvmlMemory_t memory;

	start();
	SAME(518 * MIB, used());
	OK(cuMemAlloc_v2(&a, MIB + 1));
	SAME(520 * MIB, used());
	OK(cuMemAlloc_v2(&b, 1000));
	OK(cuMemAlloc_v2(&c, MIB));
	SAME(522 * MIB, used());
	OK(cuMemFree_v2(a));
	OK(cuMemFree_v2(b));
	OK(cuMemFree_v2(c));
	SAME(518 * MIB, used());
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemAllocAsync(&a, 1000, NULL));
	SAME(550 * MIB, used());
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
	SAME(32 * MIB, reserved);
	OK(cuMemFreeAsync(a, NULL));
	OK(cuStreamSynchronize(NULL));
	SAME(518 * MIB, used());
	cuuint64_t keep = UINT64_MAX; /* as PyTorch sets it */
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuMemAllocAsync(&a, 33 * MIB, NULL));
	OK(cuStreamSynchronize(NULL));
	SAME(582 * MIB, used());
	OK(cuMemFreeAsync(a, NULL));
	OK(cuStreamSynchronize(NULL));
	SAME(582 * MIB, used());
	OK(cuMemPoolTrimTo(pool, 0));
	SAME(518 * MIB, used());
	OK(cuCtxCreate_v2(&second, 0, 0));
	SAME(2 * 518 * MIB, used());
	OK(nvmlInit_v2());
	OK(nvmlDeviceGetHandleByIndex_v2(0, &device));
	OK(nvmlDeviceGetMemoryInfo(device, &memory));
	SAME(81559 * MIB, memory.total);
	SAME((551 + 2 * 518) * MIB, memory.used);
	OK(cuCtxDestroy_v2(second));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	OK(nvmlDeviceGetMemoryInfo(device, &memory));
	SAME(551 * MIB, memory.used);
	return done();
}
