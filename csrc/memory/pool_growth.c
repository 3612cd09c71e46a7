/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps the growth of pools inside the quota.  Before an allocation the pool's possible growth is reserved: the bytes
 * that do not fit into its unused memory, in whole steps (32 MiB on the cards seen; learned).  Afterwards the pool is
 * charged what it really holds.  That may be more, if its unused memory is in pieces or not released yet.  If it
 * exceeds the quota, the hook undoes the allocation.
 *
 * Locks: pool_lock (hooks: one stream-ordered allocation per gpu at a time, so that each one's growth is its own),
 * then books_lock (pool.c).  During an allocation the pool's `floor` keeps the reservation from being uncharged.
 */
#include "process/limits.h"
#include "memory/pool.h"

#define MIN_STEP_BYTES (UINT64_C(2) << 20)
#define MAX_STEP_BYTES (UINT64_C(32) << 20)

static uint64_t whole_steps(const struct gl_gpu *gpu, uint64_t need)
{
	uint64_t step = gpu->pool_step;
	if (!need || !step || need > UINT64_MAX - step)
		return need;
	return (need + step - 1) / step * step;
}

/* Adds what was reserved to the pool's charge, and returns what the allocation still needs beyond it. */
static uint64_t missing(struct gl_gpu *gpu, CUmemoryPool handle, uint64_t bytes, uint64_t reserved,
			enum gl_memory_kind *kind)
{
	uint64_t need = UINT64_MAX, want; /* a pool that has no entry has no unused memory to offer */
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = gl_pool_find(gpu, handle);
	if (pool) {
		*kind = (enum gl_memory_kind)pool->kind;
		pool->charged += reserved;
		if (reserved)
			pool->floor = pool->charged;
		gl_pool_refresh_locked(gpu, pool);
		uint64_t used = gl_pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
		if (__builtin_add_overflow(used, bytes, &want))
			want = UINT64_MAX;
		need = want > pool->charged ? want - pool->charged : 0;
		if (!reserved) {
			pool->base = pool->charged;
			pool->need = need;
			need = whole_steps(gpu, need);
		}
	} else {
		gl_uncharge(gpu, *kind, reserved);
	}
	gl_unlock(&gpu->books_lock);
	gl_capture_restore(mode);
	return need;
}

static void lower_floor(struct gl_gpu *gpu, CUmemoryPool handle)
{
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = gl_pool_find(gpu, handle);
	if (pool) {
		pool->floor = 0;
		gl_pool_refresh_locked(gpu, pool);
	}
	gl_unlock(&gpu->books_lock);
	gl_capture_restore(mode);
}

bool gl_pool_reserve(struct gl_gpu *gpu, CUmemoryPool handle, uint64_t bytes)
{
	enum gl_memory_kind kind = GL_MEM_POOL;
	gl_store_relaxed(&gpu->account->pool_unused_bytes, 0);
	uint64_t need = missing(gpu, handle, bytes, 0, &kind);
	/* Reserving trims pools when the quota is short, this pool too; then a little more is needed. */
	for (int tries = 0; need && tries < 8; tries++) {
		if (gl_reserve(gpu, kind, need) != 0) {
			lower_floor(gpu, handle);
			return false;
		}
		need = missing(gpu, handle, bytes, need, &kind);
	}
	gl_in_flight_begin(gpu); /* until settled */
	return true;
}

/* Trims and waits up to a tenth of a second for the pool to shrink to the allowed size.  Memory freed in stream order
 * is released when the GPU gets there, and the program may be a few frees ahead of it. */
static bool shrinks_to(struct gl_gpu *gpu, CUmemoryPool handle, uint64_t allowed)
{
	uint64_t deadline = gl_now_ns() + 100000000u;
	for (;;) {
		(void)gl_pools_trim(gpu);
		gl_lock(&gpu->books_lock);
		struct gl_pool *pool = gl_pool_find(gpu, handle);
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

/* Learns the step by which pools grow: the smallest growth that exceeded the need.  Figures that are no powers of two
 * are ignored, because they include memory that was freed and not released yet. */
static void learn_step(struct gl_gpu *gpu, const struct gl_pool *pool)
{
	uint64_t grown = pool->charged > pool->base ? pool->charged - pool->base : 0;
	bool sane = grown >= MIN_STEP_BYTES && grown <= MAX_STEP_BYTES && (grown & (grown - 1)) == 0;
	if (sane && grown > pool->need && (!gpu->pool_step || grown < gpu->pool_step))
		gpu->pool_step = grown;
}

bool gl_pool_settle(struct gl_gpu *gpu, CUmemoryPool handle)
{
	uint64_t allowed = 0, now = 0;
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	struct gl_pool *pool = gl_pool_find(gpu, handle);
	if (pool) {
		allowed = pool->charged;
		pool->floor = 0;
		gl_pool_refresh_locked(gpu, pool);
		now = pool->charged;
		learn_step(gpu, pool);
	}
	gl_in_flight_end(gpu);
	gl_unlock(&gpu->books_lock);
	gl_capture_restore(mode);
	if (GL_LIKELY(now <= allowed || !gl_over_limit(gpu)))
		return true;
	(void)gl_segment_reap();
	return shrinks_to(gpu, handle, allowed);
}
