/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream-ordered memory.  A pool takes room on the card in steps (32 MiB as measured) and gives back what
 * it need not keep (its threshold, or what is in use) at the next synchronisation.  Simplified: an
 * allocation or a free counts when it is submitted, and the pool has no holes.
 */
#include <stdlib.h>

#include "pool.h"

static struct CUmemPoolHandle_st defaults[SIM_MAX_GPUS]; /* by device */
static CUmemoryPool chosen[SIM_MAX_GPUS];
static CUmemoryPool made; /* list of those from cuMemPoolCreate */

CUmemoryPool sim_default_pool(CUdevice dev)
{
	CUmemoryPool pool = &defaults[dev];

	if (!pool->present) {
		pool->present = pool->is_default = true;
		pool->device = dev;
		pool->gpu = sim_device_gpu[dev];
		pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
		sim_handle_add(pool, SIM_POOL);
	}
	return pool;
}

CUmemoryPool sim_chosen_pool(CUdevice dev)
{
	return sim_handle_is(chosen[dev], SIM_POOL) ? chosen[dev] : sim_default_pool(dev);
}

void sim_choose_pool(CUdevice dev, CUmemoryPool pool)
{
	chosen[dev] = pool;
}

static uint64_t step_up(const struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
	uint64_t step = sim_model_of(pool->gpu)->pool_step_bytes;

	return (bytes + step - 1) / step * step;
}

static uint64_t piece(const struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
	return sim_model_of(pool->gpu)->pool_step_bytes < 512 ? bytes : (bytes + 511) / 512 * 512;
}

static CUresult grow(CUmemoryPool pool, uint64_t used)
{
	if (used <= pool->reserved)
		return CUDA_SUCCESS;
	uint64_t more = step_up(pool, used - pool->reserved);
	if (pool->most && pool->reserved + more > pool->most)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!pool->on_host)
		SIM_TRY(sim_charge(pool->gpu, more));
	pool->reserved += more;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
	return CUDA_SUCCESS;
}

static void shrink(CUmemoryPool pool, uint64_t keep)
{
	if (keep >= pool->reserved)
		return; /* a threshold of all there is, as frameworks set it, has no next step */
	uint64_t target = step_up(pool, keep > pool->used ? keep : pool->used);
	if (target >= pool->reserved)
		return;
	if (!pool->on_host)
		sim_uncharge(pool->gpu, pool->reserved - target);
	pool->reserved = target;
}

static void settle(CUmemoryPool pool, uint32_t gpu, bool all)
{
	if (pool->present && pool->gpu == gpu)
		shrink(pool, all ? 0 : pool->threshold);
}

static void settle_all(uint32_t gpu, bool all)
{
	for (int i = 0; i < SIM_MAX_GPUS; i++)
		settle(&defaults[i], gpu, all);
	for (CUmemoryPool pool = made; pool; pool = pool->next)
		settle(pool, gpu, all);
}

void sim_pools_settle(uint32_t gpu) { settle_all(gpu, false); }
void sim_pools_empty(uint32_t gpu) { settle_all(gpu, true); }

CUresult sim_pool_allocate(CUdeviceptr *out, uint64_t bytes, CUmemoryPool pool, CUcontext ctx)
{
	uint64_t size = piece(pool, bytes), mapped = sim_page_up(bytes);

	SIM_TRY(grow(pool, pool->used + size));
	uint64_t at = sim_backing(mapped, false);
	struct sim_block block = {
		.addr = at, .bytes = bytes, .mapped_bytes = mapped, .kind = SIM_POOLED, .ctx = ctx, .device = pool->device, .owner = pool, .fd = -1,
	};
	if (!at || !sim_block_add(&block)) {
		sim_unback(at, mapped);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pool->used += size;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	*out = at;
	return CUDA_SUCCESS;
}

CUresult sim_pool_free(struct sim_block *block)
{
	CUmemoryPool pool = block->owner;

	if (block->kind == SIM_GRAPHMEM)
		return sim_graph_memory_free(block);
	pool->used -= piece(pool, block->bytes);
	sim_unback(block->addr, block->mapped_bytes);
	sim_block_drop(block);
	if (pool->dying && !pool->used)
		sim_pool_end(pool);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	SIM_ENTER(cuDeviceGetDefaultMemPool);
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = sim_default_pool(dev);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	SIM_ENTER(cuDeviceGetMemPool);
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = sim_chosen_pool(dev);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	SIM_ENTER(cuDeviceSetMemPool);
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!sim_handle_is(pool, SIM_POOL) || pool->device != dev)
		return CUDA_ERROR_INVALID_VALUE;
	sim_choose_pool(dev, pool);
	return CUDA_SUCCESS;
}

void sim_pool_end(CUmemoryPool pool)
{
	shrink(pool, 0);
	for (CUmemoryPool *at = &made; *at; at = &(*at)->next) {
		if (*at != pool)
			continue;
		*at = pool->next;
		break;
	}
	free(pool);
}

void sim_pool_begin(CUmemoryPool pool)
{
	pool->present = true;
	pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
	pool->next = made;
	made = pool;
	sim_handle_add(pool, SIM_POOL);
}

void sim_pool_trim(CUmemoryPool pool, uint64_t keep) { shrink(pool, keep); }
