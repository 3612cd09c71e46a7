/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that pools give back by themselves: it is off the card once the stream has been waited for, so the books are
 * looked at there and not only at the process's next allocation, which another process of the tenant would wait for.
 *
 * Memory that pools keep unused: the process that is about to be refused trims its own, and asks the others by
 * device->memory_wanted.  They look at it where they wait for the GPU and where they free, trim, and ring
 * device->memory_change.  A process that is doing neither keeps what it has.
 */
#include "memory/pool.h"

#define TRIM_PAUSE_NS 10000000u  /* between two trims that another process asked for */
#define ANSWER_NS 20000000u      /* how long the others may take */

/* Call with books_lock held and captures relaxed. */
static bool keeps_unused(const struct gl_gpu *gpu)
{
	for (uint32_t i = 0; i < gpu->pool_count; i++) {
		const struct gl_pool *pool = &gpu->pools[i];
		if (pool->orphans || pool->charged > gl_pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
			return true;
	}
	return false;
}

static void look(struct gl_gpu *gpu)
{
	gl_store_relaxed(&gpu->pools_stale, 0u); /* before, so that a free meanwhile is not lost */
	gl_pools_refresh(gpu);
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	bool more = keeps_unused(gpu);
	gl_unlock(&gpu->books_lock);
	gl_capture_restore(mode);
	if (more) /* another stream has still to be waited for, or the pool is told to keep it */
		gl_store_relaxed(&gpu->pools_stale, 1u);
}

void gl_pools_trim_if_asked(struct gl_gpu *gpu)
{
	if (GL_LIKELY(!gpu || !gl_load_relaxed(&gpu->device->memory_wanted)) || gl_load_relaxed(&gl_self.capturing))
		return;
	uint64_t now = gl_now_ns(), last = gl_load_relaxed(&gpu->pools_trimmed_ns);
	if (now - last < TRIM_PAUSE_NS)
		return;
	gl_store_relaxed(&gpu->pools_trimmed_ns, now);
	(void)gl_pools_trim(gpu);
}

void gl_pools_waited(void)
{
	if (!gl_load_acquire(&gl_self.gpus_ready))
		return;
	for (int i = 0; i < gl_self.gpu_count; i++) {
		struct gl_gpu *gpu = &gl_self.gpu[i];
		if (GL_LIKELY(!gl_load_relaxed(&gpu->pools_stale) && !gl_load_relaxed(&gpu->graph_memory)))
			continue;
		if (gl_load_relaxed(&gpu->pools_stale))
			look(gpu);
		gl_pools_trim_if_asked(gpu);
	}
}

/* Another process of the tenant has memory that it may be able to give back. */
static bool others_have_pools(const struct gl_gpu *gpu)
{
	uint32_t used = gl_load_relaxed(&gl_self.usage->header.slots_used);
	for (uint32_t i = 0; i < used && i < GL_MAX_SLOTS; i++) {
		const struct gl_account *account = &gl_self.usage->slot[i].account[gpu->index];
		if ((int)i != gl_self.slot && (gl_load_relaxed(&gl_self.usage->slot[i].generation) & 1) &&
		    (gl_load_relaxed(&account->kind_bytes[GL_MEM_POOL]) ||
		     gl_load_relaxed(&account->kind_bytes[GL_MEM_GRAPH])))
			return true;
	}
	return false;
}

bool gl_pools_ask_siblings(struct gl_gpu *gpu)
{
	struct gl_device *d = gpu->device;
	if (gl_load_relaxed(&gl_self.capturing) || !others_have_pools(gpu))
		return false;
	uint32_t seen = gl_load_acquire(&d->memory_change);
	gl_store_release(&d->memory_wanted, 1u);
	bool answered = gl_futex_wait(&d->memory_change, seen, ANSWER_NS) != -ETIMEDOUT ||
			gl_load_acquire(&d->memory_change) != seen;
	gl_store_relaxed(&d->memory_wanted, 0u); /* a thread that waits for memory says so again at its next try */
	return answered;
}
