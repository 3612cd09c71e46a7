/* SPDX-License-Identifier: Apache-2.0
 *
 * What pool.c and pool_growth.c share.
 */
#ifndef GL_POOL_H
#define GL_POOL_H

#include "shim.h"

#pragma GCC visibility push(hidden)

/* Trims as gl_pools_trim does, without waiting.  False: another thread holds books_lock. */
bool gl_pools_try_trim(struct gl_gpu *gpu);

struct gl_pool {
	CUmemoryPool handle;
	uint64_t charged;
	uint64_t floor;   /* charge at least this: an allocation is under way */
	uint64_t base;    /* what the pool held before it, */
	uint64_t need;    /* and how much more it seemed to need */
	uint32_t kind;    /* enum gl_memory_kind */
	uint32_t orphans; /* > 0: destroyed, the handle is only a name, and this many pointers are not freed yet */
};

/* All with books_lock held and captures relaxed. */
struct gl_pool *gl_pool_find(struct gl_gpu *gpu, CUmemoryPool handle);
/* Charges the driver's figure of what the pool holds. */
void gl_pool_refresh_locked(struct gl_gpu *gpu, struct gl_pool *pool);
uint64_t gl_pool_attribute(const struct gl_pool *pool, CUmemPool_attribute which);

#pragma GCC visibility pop

#endif
