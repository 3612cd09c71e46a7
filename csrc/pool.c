/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools.  A pool is charged what the driver says that it holds, used or not, because that is what is missing on
 * the card; pointers from it are known, but carry no charge of their own.  The driver gives unused memory back by
 * itself at synchronisation, so the charge can lag on the high side; it is brought up to date at each call
 * that touches the pool, and for all pools when the quota is short or somebody asks.
 *
 * Locks: pool_lock (hooks: one stream-ordered allocation per gpu at a time, so that each one's growth is its own),
 * then books_lock (entries; held for attribute calls and trims, never across gl_reserve, which comes here itself).
 * While an allocation is under way its pool's `floor` keeps what was reserved for it from being given back.
 */
#include <string.h>

#include "shim.h"

struct gl_pool {
	CUmemoryPool handle;
	uint64_t charged;
	uint64_t floor;  /* charge at least this: an allocation is under way */
	uint32_t kind;   /* enum gl_memory_kind */
	uint32_t orphans; /* > 0: destroyed, handle is only a name, and this many pointers are still out */
};

/* Should the driver not say, then what is charged: never less than the truth was. */
static uint64_t attribute(const struct gl_pool *pool, CUmemPool_attribute which)
{
	cuuint64_t value = 0;
	return REAL(cuMemPoolGetAttribute)(pool->handle, which, &value) == CUDA_SUCCESS ? value : pool->charged;
}

/* Call with books_lock held. */
static struct gl_pool *find(struct gl_gpu *gpu, CUmemoryPool handle)
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
static void refresh(struct gl_gpu *gpu, struct gl_pool *pool)
{
	if (pool->orphans)
		return;
	uint64_t reserved = attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	charge(gpu, pool, reserved > pool->floor ? reserved : pool->floor);
}

static void forget(struct gl_gpu *gpu, struct gl_pool *pool)
{
	charge(gpu, pool, 0);
	*pool = gpu->pools[--gpu->pool_count];
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
		CUstreamCaptureMode mode = gl_relax();
		gl_lock(&gpu->books_lock);
		struct gl_pool *pool = find(gpu, handle);
		if (!pool && room(gpu)) {
			pool = &gpu->pools[gpu->pool_count++];
			*pool = (struct gl_pool){.handle = handle, .kind = kind};
		}
		r = pool ? gl_block_put(&block, NULL) : -ENOMEM;
		if (r == 0)
			refresh(gpu, pool);
		else if (pool)
			forget(gpu, pool);
		gl_unlock(&gpu->books_lock);
		gl_unrelax(mode);
	} else {
		r = gl_block_put(&block, NULL);
	}
	return r;
}

/* Whose is a pool that was not made through us: a device's default one, or one that a newer driver describes. */
static struct gl_gpu *recognise(CUmemoryPool handle)
{
	CUstreamCaptureMode mode = gl_relax();
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
	gl_unrelax(mode);
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

/* Adds what was reserved to the pool's charge, and returns what the allocation still needs beyond it. */
static uint64_t missing(struct gl_gpu *gpu, CUmemoryPool handle, uint64_t bytes, uint64_t reserved,
			enum gl_memory_kind *kind)
{
	uint64_t need = UINT64_MAX, want; /* a pool that could not be written down gives nothing */
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = find(gpu, handle);
	if (pool) {
		*kind = (enum gl_memory_kind)pool->kind;
		pool->charged += reserved;
		if (reserved)
			pool->floor = pool->charged;
		refresh(gpu, pool);
		uint64_t used = attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
		if (__builtin_add_overflow(used, bytes, &want))
			want = UINT64_MAX;
		need = want > pool->charged ? want - pool->charged : 0;
	} else {
		gl_release(gpu, *kind, reserved);
	}
	gl_unlock(&gpu->books_lock);
	gl_unrelax(mode);
	return need;
}

static void lower_floor(struct gl_gpu *gpu, CUmemoryPool handle)
{
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = find(gpu, handle);
	if (pool) {
		pool->floor = 0;
		refresh(gpu, pool);
	}
	gl_unlock(&gpu->books_lock);
	gl_unrelax(mode);
}

bool gl_pool_reserve(struct gl_gpu *gpu, CUmemoryPool handle, uint64_t bytes)
{
	enum gl_memory_kind kind = GL_MEM_POOL;
	uint64_t need = missing(gpu, handle, bytes, 0, &kind);
	/* When the quota is short, reserving trims pools, this one too; then a little more is needed after all. */
	for (int tries = 0; need && tries < 8; tries++) {
		if (gl_reserve(gpu, kind, need) != 0) {
			lower_floor(gpu, handle);
			return false;
		}
		need = missing(gpu, handle, bytes, need, &kind);
	}
	return true;
}

/* Trims and looks for a tenth of a second whether the pool comes back to what was allowed: memory freed in stream
 * order comes back when the card gets there, and a program may be a few frees ahead of it. */
static bool shrinks_to(struct gl_gpu *gpu, CUmemoryPool handle, uint64_t allowed)
{
	uint64_t deadline = gl_now_ns() + 100000000u;
	for (;;) {
		(void)gl_pools_trim(gpu);
		gl_lock(&gpu->books_lock);
		struct gl_pool *pool = find(gpu, handle);
		uint64_t charged = pool ? pool->charged : 0;
		gl_unlock(&gpu->books_lock);
		if (charged <= allowed || !gl_over_limit(gpu))
			return true;
		if (gl_now_ns() > deadline)
			return false;
		int kept = errno;
		struct timespec pause = {0, 200000};
		nanosleep(&pause, NULL);
		errno = kept;
	}
}

bool gl_pool_settle(struct gl_gpu *gpu, CUmemoryPool handle)
{
	uint64_t allowed = 0, now = 0;
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = find(gpu, handle);
	if (pool) {
		allowed = pool->charged;
		pool->floor = 0;
		refresh(gpu, pool);
		now = pool->charged;
	}
	gl_unlock(&gpu->books_lock);
	gl_unrelax(mode);
	if (GL_LIKELY(now <= allowed || !gl_over_limit(gpu)))
		return true;
	(void)gl_segment_reap();
	return shrinks_to(gpu, handle, allowed);
}

void gl_pool_refresh(struct gl_gpu *gpu, CUmemoryPool handle)
{
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = find(gpu, handle);
	if (pool)
		refresh(gpu, pool);
	gl_unlock(&gpu->books_lock);
	gl_unrelax(mode);
}

void gl_pool_freed(const struct gl_block *pointer)
{
	struct gl_gpu *gpu = gl_gpu_of((CUdevice)pointer->ordinal);
	if (!gpu)
		return;
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = find(gpu, (CUmemoryPool)(uintptr_t)pointer->other);
	if (pool && pool->orphans && --pool->orphans == 0) {
		forget(gpu, pool);
		gl_overhead_mark(gpu);
	} else if (pool) {
		refresh(gpu, pool);
	}
	gl_unlock(&gpu->books_lock);
	gl_unrelax(mode);
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

/* Pointers outlive their pool (seen on a card), and its handle may be given out again meanwhile, so the entry takes
 * another name.  Odd, so that it is no handle. */
static void orphan(struct gl_gpu *gpu, struct gl_pool *pool)
{
	struct rename rename = {(uintptr_t)pool->handle, gl_add(&gl_self.next_id, 1) * 2 + 1, 0};
	gl_block_each(renames, &rename);
	pool->handle = (CUmemoryPool)(uintptr_t)rename.to;
	pool->orphans = rename.count;
	if (rename.count == 0)
		forget(gpu, pool);
	gl_overhead_mark(gpu); /* frees under way may hold memory a little longer */
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
	/* The lock is held across the driver's call, so that nobody asks about a pool that is gone. */
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = find(gpu, handle);
	REAL(cuMemPoolTrimTo)(handle, 0);
	if (pool)
		refresh(gpu, pool);
	gl_unrelax(mode);
	CUresult result = REAL(cuMemPoolDestroy)(handle);
	if (result == CUDA_SUCCESS && pool) {
		(void)gl_block_take(GL_SPACE_POOL, (uintptr_t)handle, &block);
		orphan(gpu, pool);
	}
	gl_unlock(&gpu->books_lock);
	return result;
}

bool gl_pools_trim(struct gl_gpu *gpu)
{
	if (!gpu->pool_count && !gpu->graph_memory)
		return false;
	uint64_t before = 0, after = 0;
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	for (uint32_t i = 0; i < gpu->pool_count; i++) {
		struct gl_pool *pool = &gpu->pools[i];
		before += pool->charged;
		if (!pool->orphans && REAL(cuMemPoolTrimTo)(pool->handle, 0) == CUDA_SUCCESS)
			refresh(gpu, pool);
		after += pool->charged;
	}
	before += gpu->graph_charged_bytes;
	if (gpu->graph_memory && REAL(cuDeviceGraphMemTrim)(gpu->ordinal) == CUDA_SUCCESS)
		gl_graph_memory_refresh(gpu);
	after += gpu->graph_charged_bytes;
	gl_unlock(&gpu->books_lock);
	gl_unrelax(mode);
	return after < before;
}

void gl_pools_refresh(struct gl_gpu *gpu)
{
	if (!gpu->pool_count && !gpu->graph_memory)
		return;
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	for (uint32_t i = 0; i < gpu->pool_count; i++)
		refresh(gpu, &gpu->pools[i]);
	if (gpu->graph_memory)
		gl_graph_memory_refresh(gpu);
	gl_unlock(&gpu->books_lock);
	gl_unrelax(mode);
}
