/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools as objects: making and ending them, their attributes, and handing them to other processes.
 * Memory of an imported pool stays charged to the process that made it.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc.h"
#include "pool.h"

/* Only pools of devices have a default. */
static CUresult device_at(const CUmemLocation *where, CUdevice *dev)
{
	if (!where || where->type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_device_ok(where->id))
		return CUDA_ERROR_INVALID_VALUE;
	*dev = where->id;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *where, int type)
{
	SIM_ENTER(cuMemGetDefaultMemPool);
	CUdevice dev;

	SIM_TRY(device_at(where, &dev));
	if (!pool || type != 1)
		return CUDA_ERROR_INVALID_VALUE;
	*pool = sim_default_pool(dev);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *where, int type)
{
	SIM_ENTER(cuMemGetMemPool);
	CUdevice dev;

	SIM_TRY(device_at(where, &dev));
	if (!pool || type != 1)
		return CUDA_ERROR_INVALID_VALUE;
	*pool = sim_chosen_pool(dev);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemSetMemPool(CUmemLocation *where, int type, CUmemoryPool pool)
{
	SIM_ENTER(cuMemSetMemPool);
	CUdevice dev;

	SIM_TRY(device_at(where, &dev));
	if (type != 1 || !sim_handle_is(pool, SIM_POOL) || pool->device != dev)
		return CUDA_ERROR_INVALID_VALUE;
	sim_choose_pool(dev, pool);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
	SIM_ENTER(cuMemPoolCreate);
	bool host = props && props->location.type >= CU_MEM_LOCATION_TYPE_HOST;

	if (!out || !props || (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE && !host))
		return CUDA_ERROR_INVALID_VALUE;
	if (!host && !sim_device_ok(props->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	CUmemoryPool pool = calloc(1, sizeof(*pool));
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pool->device = host ? 0 : props->location.id;
	pool->gpu = sim_device_gpu[pool->device];
	pool->on_host = host;
	pool->most = props->maxSize;
	pool->handle_types = props->handleTypes;
	sim_pool_begin(pool);
	*out = pool;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	SIM_ENTER(cuMemPoolDestroy);
	if (!sim_handle_is(pool, SIM_POOL) || pool->is_default)
		return CUDA_ERROR_INVALID_VALUE;
	sim_handle_drop(pool);
	if (pool->used)
		pool->dying = true; /* goes with its last allocation */
	else
		sim_pool_end(pool);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	SIM_ENTER(cuMemPoolTrimTo);
	if (!sim_handle_is(pool, SIM_POOL))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_unsafe());
	sim_pool_trim(pool, keep);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SIM_ENTER(cuMemPoolGetAttribute);
	if (!sim_handle_is(pool, SIM_POOL) || !value)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_unsafe());
	switch (attribute) {
	case 1:
	case 2:
	case 3: *(int *)value = pool->reuse[attribute - 1]; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(cuuint64_t *)value = pool->threshold; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(cuuint64_t *)value = pool->reserved; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(cuuint64_t *)value = pool->reserved_high; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(cuuint64_t *)value = pool->used; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(cuuint64_t *)value = pool->used_high; return CUDA_SUCCESS;
	case 9: *(int *)value = 1; return CUDA_SUCCESS;                     /* allocation type: pinned */
	case 10: *(int *)value = pool->handle_types; return CUDA_SUCCESS;   /* export handle types */
	case 11: *(int *)value = pool->device; return CUDA_SUCCESS;         /* location id */
	case 12: *(int *)value = pool->on_host ? 2 : 1; return CUDA_SUCCESS; /* location type */
	default: return CUDA_ERROR_INVALID_VALUE;
	}
}

SIM_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SIM_ENTER(cuMemPoolSetAttribute);
	if (!sim_handle_is(pool, SIM_POOL) || !value)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_unsafe());
	if (attribute >= 1 && attribute <= 3) {
		pool->reuse[attribute - 1] = *(int *)value;
		return CUDA_SUCCESS;
	}
	if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
		pool->threshold = *(cuuint64_t *)value;
		return CUDA_SUCCESS;
	}
	if (*(cuuint64_t *)value) /* the marks can only be reset */
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
		pool->reserved_high = pool->reserved;
	else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		pool->used_high = pool->used;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
	SIM_ENTER(cuMemPoolSetAccess);
	return sim_handle_is(pool, SIM_POOL) && (map || !count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location)
{
	SIM_ENTER(cuMemPoolGetAccess);
	if (!flags || !location || !sim_handle_is(pool, SIM_POOL))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = location->id == pool->device ? 3 : 0;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags)
{
	SIM_ENTER(cuMemPoolExportToShareableHandle);
	if (!handle || flags || !sim_handle_is(pool, SIM_POOL) || type != 1 || !(pool->handle_types & 1))
		return CUDA_ERROR_INVALID_VALUE;
	int fd = memfd_create("gpulimit-sim-pool", MFD_CLOEXEC);
	uint32_t gpu = pool->gpu;
	if (fd < 0 || write(fd, &gpu, sizeof(gpu)) != sizeof(gpu))
		return CUDA_ERROR_UNKNOWN;
	*(int *)handle = fd;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolImportFromShareableHandle(
	CUmemoryPool *out, void *handle, CUmemAllocationHandleType type, unsigned long long flags)
{
	SIM_ENTER(cuMemPoolImportFromShareableHandle);
	uint32_t gpu;

	if (!out || flags || type != 1 || pread((int)(intptr_t)handle, &gpu, sizeof(gpu), 0) != sizeof(gpu) || gpu >= sim_machine->ngpus)
		return CUDA_ERROR_INVALID_VALUE;
	int device = sim_device_of_gpu(gpu);
	CUmemoryPool pool = device < 0 ? NULL : calloc(1, sizeof(*pool));
	if (!pool)
		return device < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_OUT_OF_MEMORY;
	pool->device = device;
	pool->gpu = gpu;
	pool->imported = true;
	sim_pool_begin(pool);
	*out = pool;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr)
{
	SIM_ENTER(cuMemPoolExportPointer);
	struct sim_block *block = sim_block_at(ptr);

	if (!data || !block || block->kind != SIM_POOLED)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_ipc ipc;
	SIM_TRY(sim_ipc_export(block, &ipc));
	memset(data, 0, sizeof(*data));
	memcpy(data, &ipc, sizeof(ipc));
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	SIM_ENTER(cuMemPoolImportPointer);
	SIM_CURRENT(ctx);
	struct sim_ipc ipc;

	if (!out || !data || !sim_handle_is(pool, SIM_POOL) || !pool->imported)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&ipc, data, sizeof(ipc));
	return sim_ipc_open(ctx, &ipc, true, out);
}
