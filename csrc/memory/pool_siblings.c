/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that pools release by themselves: it is free on the card once the program has waited for the stream.  So it is
 * uncharged there, and not only at the process's next allocation, for which another process of the tenant would have to
 * wait.
 *
 * Memory that pools keep unused: a process that is about to be refused trims its own pools.  Then it asks each sibling
 * that has pools, by a word in the sibling's slot.  The sibling answers at its next call of any kind; if it is waiting
 * for the GPU, when that wait ends.  If it is registered with a daemon, the library's thread answers within a second.
 * The asking process waits for that only if the sibling's account shows unused memory.  Without a daemon, a process
 * that makes no call keeps its unused memory.  No process answers while it captures a stream.
 */
#include <limits.h>

#include "memory/pool.h"
#include "time/types.h"

#define TRIM_PAUSE_NS 10000000u               /* between two trims for another process that waits for memory */
#define ANSWER_NS UINT64_C(20000000)          /* time that siblings get until their next call */
#define THREAD_ANSWER_NS UINT64_C(1300000000) /* time that their threads get, which look once a second */
#define ASK_PAUSE_NS UINT64_C(1000000000)     /* between two times a process asks: each refusal in between is immediate */
#define ASK_PAUSE_UNUSED_NS UINT64_C(100000000) /* the same where a sibling's account shows unused memory */

/* Call with books_lock held and captures relaxed.  *unused: the unused bytes, as far as the driver tells them. */
static bool keeps_unused(const struct gl_gpu *gpu, uint64_t *unused)
{
	bool any = false;
	*unused = 0;
	for (uint32_t i = 0; i < gpu->pool_count; i++) {
		const struct gl_pool *pool = &gpu->pools[i];
		uint64_t used = pool->orphans ? pool->charged : gl_pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
		any |= pool->orphans || pool->charged > used;
		*unused += pool->charged > used ? pool->charged - used : 0;
	}
	return any;
}

static bool trims_now(void)
{
	return gl_load_acquire(&gl_self.gpus_ready) && !gl_load_relaxed(&gl_self.capturing) && !gl_meter_closing();
}

static void answer(bool (*trims)(struct gl_gpu *))
{
	int kept = errno;
	uint32_t *word = &gl_self.own->asked, asked = trims_now() ? gl_load_acquire(word) : 0;
	for (int i = 0; asked && i < gl_self.gpu_count; i++) {
		struct gl_gpu *gpu = &gl_self.gpu[i];
		if (!(asked >> gpu->index & 1) || !trims(gpu))
			continue;
		gl_store_relaxed(&gpu->account->pool_unused_bytes, 0);
		(void)__atomic_fetch_and(word, ~(1u << gpu->index), __ATOMIC_ACQ_REL);
		gl_futex_wake(&gpu->device->memory_change, INT_MAX); /* the asking process need not wait longer */
	}
	errno = kept;
}

static bool trim_by_call(struct gl_gpu *gpu)
{
	(void)gl_pools_trim(gpu);
	return true;
}

void gl_pools_answer_asked(void)
{
	answer(trim_by_call);
}

/* Called by the library's thread. */
static void give(void)
{
	answer(gl_pools_try_trim);
}

static void look(struct gl_gpu *gpu)
{
	uint64_t unused;
	gl_store_relaxed(&gpu->pools_stale, 0u); /* before the look, so that a free meanwhile is not missed */
	gl_pools_refresh(gpu);
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	bool more = keeps_unused(gpu, &unused);
	gl_store_relaxed(&gpu->account->pool_unused_bytes, unused);
	gl_store_release(&gl_self.give, give);
	gl_unlock(&gpu->books_lock);
	gl_capture_restore(mode);
	if (more) /* the program has not waited for another stream yet, or has told the pool to keep it */
		gl_store_relaxed(&gpu->pools_stale, 1u);
}

void gl_pools_trim_if_asked(struct gl_gpu *gpu)
{
	if (GL_UNLIKELY(gl_load_relaxed(&gl_self.own->asked)))
		gl_pools_answer_asked();
	if (GL_LIKELY(!gpu || !gl_load_relaxed(&gpu->device->memory_wanted)) || !trims_now())
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

/* Another process of the tenant that has memory in pools, searched from slot *at; NULL: there is none. */
static struct gl_slot *next_with_pools(const struct gl_gpu *gpu, uint32_t *at)
{
	uint32_t used = gl_load_relaxed(&gl_self.usage->header.slots_used);
	while (*at < used && *at < GL_MAX_SLOTS) {
		uint32_t i = (*at)++;
		struct gl_slot *slot = &gl_self.usage->slot[i];
		const struct gl_account *account = &slot->account[gpu->index];
		if ((int)i != gl_self.slot && (gl_load_relaxed(&slot->generation) & 1) &&
		    (gl_load_relaxed(&account->kind_bytes[GL_MEM_POOL]) || gl_load_relaxed(&account->kind_bytes[GL_MEM_GRAPH])))
			return slot;
	}
	return NULL;
}

/* A program that is refused again and again must not wait for its siblings each time. */
static bool may_ask(struct gl_gpu *gpu, uint64_t now)
{
	uint64_t since = now - gl_load_relaxed(&gpu->pools_asked_ns);
	struct gl_slot *slot;
	bool shown = false;
	if (since < ASK_PAUSE_UNUSED_NS)
		return false;
	for (uint32_t at = 0; !shown && since < ASK_PAUSE_NS && (slot = next_with_pools(gpu, &at));)
		shown = gl_load_relaxed(&slot->account[gpu->index].pool_unused_bytes) != 0;
	if (since < ASK_PAUSE_NS && !shown)
		return false;
	gl_store_relaxed(&gpu->pools_asked_ns, now);
	return true;
}

/* Returns how long an answer may take; 0: no process has anything to trim. */
static uint64_t ask(struct gl_gpu *gpu)
{
	uint64_t bound = 0;
	struct gl_slot *slot;
	for (uint32_t at = 0; (slot = next_with_pools(gpu, &at));) {
		bool has_thread = gl_load_relaxed(&slot->host_pid) != 0;
		bool keeps = gl_load_relaxed(&slot->account[gpu->index].pool_unused_bytes) != 0;
		uint64_t may_take = has_thread && keeps ? THREAD_ANSWER_NS : ANSWER_NS;
		(void)__atomic_fetch_or(&slot->asked, 1u << gpu->index, __ATOMIC_ACQ_REL);
		bound = may_take > bound ? may_take : bound;
	}
	return bound;
}

static bool some_are_to_answer(const struct gl_gpu *gpu)
{
	struct gl_slot *slot;
	for (uint32_t at = 0; (slot = next_with_pools(gpu, &at));)
		if (gl_load_acquire(&slot->asked) >> gpu->index & 1)
			return true;
	return false;
}

/* Asks at the first call, and waits for an answer.  False: no further answer will come. */
bool gl_pools_ask_siblings(struct gl_gpu *gpu, struct gl_plea *plea)
{
	struct gl_device *d = gpu->device;
	uint64_t now = gl_now_ns();
	if (!plea->until_ns) {
		plea->seen = gl_load_acquire(&d->memory_change);
		uint64_t bound = gl_load_relaxed(&gl_self.capturing) || !may_ask(gpu, now) ? 0 : ask(gpu);
		if (!bound)
			return false;
		gl_store_release(&d->memory_wanted, 1u);
		plea->until_ns = now + bound;
	}
	for (;; now = gl_now_ns()) {
		bool last = now >= plea->until_ns || !some_are_to_answer(gpu);
		uint32_t change = gl_load_acquire(&d->memory_change);
		if (change != plea->seen) {
			plea->seen = change;
			gl_store_release(&d->memory_wanted, 1u); /* the process that rang took that memory */
			return true;
		}
		if (last)
			return false;
		uint64_t left = plea->until_ns - now;
		(void)gl_futex_wait(&d->memory_change, plea->seen, left < ANSWER_NS ? left : ANSWER_NS);
	}
}

void gl_pools_ask_end(struct gl_gpu *gpu, const struct gl_plea *plea)
{
	if (!plea->until_ns)
		return;
	gl_store_relaxed(&gpu->device->memory_wanted, 0u); /* a thread that waits sets it again at its next try */
	uint32_t used = gl_load_relaxed(&gl_self.usage->header.slots_used);
	for (uint32_t i = 0; i < used && i < GL_MAX_SLOTS; i++)
		if ((int)i != gl_self.slot && gl_load_relaxed(&gl_self.usage->slot[i].asked))
			(void)__atomic_fetch_and(&gl_self.usage->slot[i].asked, ~(1u << gpu->index), __ATOMIC_ACQ_REL);
}
