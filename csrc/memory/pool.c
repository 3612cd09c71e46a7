/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools.  A pool is charged for all memory that it holds by the driver's figure, used or not, because other programs
 * cannot use that memory.  Its pointers are recorded without a charge of their own.  The driver releases unused memory by
 * itself at synchronisation, so the charge may be too high for a while.  It is updated at each call that touches the pool,
 * and for all pools when the quota is short or another process asks.
 *
 * Locks: books_lock, held for attribute calls and trims, never across gl_reserve, which comes here itself.
 */
#include "memory/pool.h"

#include <string.h>

/* If the driver does not report its figure, `charged` is returned, which was never less than the real size. */
uint64_t gl_pool_attribute(const struct gl_pool *pool, CUmemPool_attribute which)
{
	cuuint64_t value = 0;
	return REAL(cuMemPoolGetAttribute)(pool->handle, which, &value) == CUDA_SUCCESS ? value : pool->charged;
}

/* Call with books_lock held. */
struct gl_pool *gl_pool_find(struct gl_gpu *gpu, CUmemoryPool handle)
{
	for (uint32_t i = 0; i < gpu->pool_count; i++)
		if (gpu->pools[i].handle == handle)
			return &gpu->pools[i];
	return NULL;
}

static void charge(struct gl_gpu *gpu, struct gl_pool *pool, uint64_t bytes)
{
	gl_recharge(gpu, (enum gl_memory_kind)pool->kind, pool->charged, bytes);
	pool->charged = bytes;
}

/* Call with books_lock held and captures relaxed. */
void gl_pool_refresh_locked(struct gl_gpu *gpu, struct gl_pool *pool)
{
	if (pool->orphans)
		return;
	uint64_t reserved = gl_pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	charge(gpu, pool, reserved > pool->floor ? reserved : pool->floor);
}

static void forget(struct gl_gpu *gpu, struct gl_pool *pool)
{
	charge(gpu, pool, 0);
	gl_store_relaxed(&gpu->pool_count, gpu->pool_count - 1);
	*pool = gpu->pools[gpu->pool_count];
}

/* Call with books_lock held. */
static bool room(struct gl_gpu *gpu)
{
	if (gpu->pool_count < gpu->pool_room)
		return true;
	uint32_t wider = gpu->pool_room ? gpu->pool_room * 2 : 64;
	struct gl_pool *pools = mmap(NULL, wider * sizeof *pools, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				     -1, 0);
	if (pools == MAP_FAILED)
		return false;
	if (gpu->pools) {
		memcpy(pools, gpu->pools, gpu->pool_count * sizeof *pools);
		munmap(gpu->pools, gpu->pool_room * sizeof *pools);
	}
	gpu->pools = pools;
	gpu->pool_room = wider;
	return true;
}

int gl_pool_add(CUmemoryPool handle, struct gl_gpu *gpu, enum gl_memory_kind kind)
{
	struct gl_block block = {.key = (uintptr_t)handle, .space = GL_SPACE_POOL, .kind = kind,
				 .ordinal = gpu ? (uint32_t)gpu->ordinal : GL_NOT_CHARGED};
	int r = 0;
	if (gpu) {
		CUstreamCaptureMode mode = gl_capture_relax();
		gl_lock(&gpu->books_lock);
		struct gl_pool *pool = gl_pool_find(gpu, handle);
		if (!pool && room(gpu)) {
			pool = &gpu->pools[gpu->pool_count];
			gl_store_relaxed(&gpu->pool_count, gpu->pool_count + 1);
			*pool = (struct gl_pool){.handle = handle, .kind = kind};
		}
		r = pool ? gl_block_put(&block, NULL) : -ENOMEM;
		if (r == 0)
			gl_pool_refresh_locked(gpu, pool);
		else if (pool)
			forget(gpu, pool);
		gl_unlock(&gpu->books_lock);
		gl_capture_restore(mode);
	} else {
		r = gl_block_put(&block, NULL);
	}
	return r;
}

/* Finds the gpu of a pool that no hook has seen being made: a device's default pool, or one described by a newer
 * driver. */
static struct gl_gpu *recognise(CUmemoryPool handle)
{
	CUstreamCaptureMode mode = gl_capture_relax();
	struct gl_gpu *gpu = NULL;
	int type = 0, id = -1;
	if (REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_LOCATION_TYPE, &type) == CUDA_SUCCESS &&
	    REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_LOCATION_ID, &id) == CUDA_SUCCESS)
		gpu = type == CU_MEM_LOCATION_TYPE_DEVICE ? gl_gpu_of(id) : NULL;
	for (int i = 0; !gpu && i < gl_self.gpu_count; i++) {
		CUmemoryPool own;
		if (REAL(cuDeviceGetDefaultMemPool)(&own, gl_self.gpu[i].ordinal) == CUDA_SUCCESS && own == handle)
			gpu = &gl_self.gpu[i];
	}
	gl_capture_restore(mode);
	return gpu;
}

struct gl_gpu *gl_pool_gpu(CUmemoryPool handle)
{
	struct gl_block block;
	if (gl_block_get(GL_SPACE_POOL, (uintptr_t)handle, &block))
		return block.ordinal == GL_NOT_CHARGED ? NULL : gl_gpu_of((CUdevice)block.ordinal);
	struct gl_gpu *gpu = recognise(handle);
	(void)gl_pool_add(handle, gpu, GL_MEM_POOL);
	return gpu;
}

void gl_pool_refresh(struct gl_gpu *gpu, CUmemoryPool handle)
{
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = gl_pool_find(gpu, handle);
	if (pool)
		gl_pool_refresh_locked(gpu, pool);
	gl_unlock(&gpu->books_lock);
	gl_capture_restore(mode);
}

void gl_pool_freed(const struct gl_block *pointer)
{
	struct gl_gpu *gpu = gl_gpu_of((CUdevice)pointer->ordinal);
	if (!gpu)
		return;
	gl_store_relaxed(&gpu->pools_stale, 1u);
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = gl_pool_find(gpu, (CUmemoryPool)(uintptr_t)pointer->other);
	if (pool && pool->orphans && --pool->orphans == 0) {
		forget(gpu, pool);
		gl_overhead_mark(gpu);
	} else if (pool) {
		gl_pool_refresh_locked(gpu, pool);
	}
	gl_unlock(&gpu->books_lock);
	gl_capture_restore(mode);
}

struct rename {
	uint64_t from, to;
	uint32_t count;
};

static bool renames(struct gl_block *block, void *arg)
{
	struct rename *rename = arg;
	if (block->space == GL_SPACE_POINTER && block->kind == GL_MEM_POOL && block->other == rename->from) {
		block->other = rename->to;
		rename->count++;
	}
	return false;
}

/* Pointers outlive their pool (seen on a card), and the driver may reuse its handle meanwhile.  So the entry gets
 * another name.  It is odd, so that it is no handle. */
static void orphan(struct gl_gpu *gpu, struct gl_pool *pool)
{
	struct rename rename = {(uintptr_t)pool->handle, gl_add_relaxed(&gl_self.next_id, 1) * 2 + 1, 0};
	gl_block_each(renames, &rename);
	pool->handle = (CUmemoryPool)(uintptr_t)rename.to;
	pool->orphans = rename.count;
	if (rename.count == 0)
		forget(gpu, pool);
	gl_overhead_mark(gpu); /* frees in stream order may hold memory a little longer */
}

CUresult gl_pool_destroy(CUmemoryPool handle)
{
	struct gl_block block;
	struct gl_gpu *gpu = gl_block_get(GL_SPACE_POOL, (uintptr_t)handle, &block) ? gl_pool_gpu(handle) : NULL;
	if (!gpu) {
		CUresult result = REAL(cuMemPoolDestroy)(handle);
		if (result == CUDA_SUCCESS)
			(void)gl_block_take(GL_SPACE_POOL, (uintptr_t)handle, &block);
		return result;
	}
	/* The lock is held across the driver's call, so that no thread queries a destroyed pool. */
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = gl_pool_find(gpu, handle);
	REAL(cuMemPoolTrimTo)(handle, 0);
	if (pool)
		gl_pool_refresh_locked(gpu, pool);
	gl_capture_restore(mode);
	CUresult result = REAL(cuMemPoolDestroy)(handle);
	if (result == CUDA_SUCCESS && pool) {
		(void)gl_block_take(GL_SPACE_POOL, (uintptr_t)handle, &block);
		orphan(gpu, pool);
	}
	gl_unlock(&gpu->books_lock);
	return result;
}

/* Call with books_lock held and captures relaxed. */
static bool trim(struct gl_gpu *gpu)
{
	uint64_t before = 0, after = 0;
	for (uint32_t i = 0; i < gpu->pool_count; i++) {
		struct gl_pool *pool = &gpu->pools[i];
		before += pool->charged;
		if (!pool->orphans && REAL(cuMemPoolTrimTo)(pool->handle, 0) == CUDA_SUCCESS)
			gl_pool_refresh_locked(gpu, pool);
		after += pool->charged;
	}
	before += gpu->graph_charged_bytes;
	if (gl_load_relaxed(&gpu->graph_memory) && REAL(cuDeviceGraphMemTrim)(gpu->ordinal) == CUDA_SUCCESS)
		gl_graph_memory_refresh(gpu);
	after += gpu->graph_charged_bytes;
	return after < before;
}

bool gl_pools_trim(struct gl_gpu *gpu)
{
	if (!gl_load_relaxed(&gpu->pool_count) && !gl_load_relaxed(&gpu->graph_memory))
		return false;
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	bool any = trim(gpu);
	gl_unlock(&gpu->books_lock);
	gl_capture_restore(mode);
	return any;
}

bool gl_pools_try_trim(struct gl_gpu *gpu)
{
	if (!gl_try_lock(&gpu->books_lock))
		return false;
	CUstreamCaptureMode mode = gl_capture_relax();
	(void)trim(gpu);
	gl_capture_restore(mode);
	gl_unlock(&gpu->books_lock);
	return true;
}

void gl_pools_refresh(struct gl_gpu *gpu)
{
	if (!gl_load_relaxed(&gpu->pool_count) && !gl_load_relaxed(&gpu->graph_memory))
		return;
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	for (uint32_t i = 0; i < gpu->pool_count; i++)
		gl_pool_refresh_locked(gpu, &gpu->pools[i]);
	if (gl_load_relaxed(&gpu->graph_memory))
		gl_graph_memory_refresh(gpu);
	gl_unlock(&gpu->books_lock);
	gl_capture_restore(mode);
}
