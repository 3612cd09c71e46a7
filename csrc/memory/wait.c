/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting for memory, if GPULIMIT_MEMORY_WAIT or the daemon enables it.  An allocation that the quota or the card refuses is
 * tried again when memory may have come free, until the time is up; then the refusal stands.  A size that can never fit is
 * refused at once, and so is every allocation while a stream is being captured.
 *
 * Between two tries the thread holds no lock and no reservation.  A waiting thread increments account->memory_waiting, sets
 * device->memory_wanted and sleeps on device->memory_change.  The sleep is bounded, since memory may also come free without
 * a wake-up.  These wake it:
 *   - a process of the tenant that frees memory and finds memory_wanted;
 *   - the daemon, for other tenants' memory: it sets memory_wanted in their policies, and a process that frees memory then
 *     increments memory_freed and rings the doorbell;
 *   - the daemon, for the memory of dead processes and of processes that it only sees by NVML.
 */
#include <limits.h>

#include "shim.h"

/* This thread's wait, or a try that may become one. */
static __thread struct gl_memory_wait *current;

static uint64_t bound_ns(const struct gl_gpu *gpu)
{
	const struct gl_policy_device *p = gl_policy_of(gpu);
	uint64_t own = gl_self.quota.memory_wait * GL_SECOND_NS;
	if (!p)
		return own;
	uint64_t tenants = gl_load_relaxed(&p->memory_wait_ns);
	return own && !gl_self.daemon.proposed && own < tenants ? own : tenants;
}

bool gl_memory_wait_possible(void)
{
	return (gl_self.quota.memory_wait || gl_load_acquire(&gl_self.daemon.policy)) &&
	       !gl_load_relaxed(&gl_self.capturing);
}

void gl_memory_wait_begin(struct gl_memory_wait *w)
{
	w->before = current;
	w->may_wait = w->gpu && bound_ns(w->gpu) > 0;
	if (w->may_wait)
		current = w;
}

static void announce(struct gl_memory_wait *w)
{
	struct gl_device *d = w->gpu->device;
	gl_store_release(&d->memory_wanted, 1u);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* read before the next try */
	w->seen = gl_load_acquire(&d->memory_change);
}

static void begin_waiting(struct gl_memory_wait *w)
{
	w->start_ns = gl_now_ns();
	gl_add_relaxed(&w->gpu->account->memory_waiting, 1);
	gl_add_relaxed(&w->gpu->device->memory_waits, 1);
	announce(w);
	if (gl_self.daemon.registered)
		gl_doorbell_ring();
	gl_log(GL_INFO, "device %d: waiting for %llu bytes of memory", w->gpu->ordinal, (unsigned long long)w->bytes);
}

bool gl_memory_wait_hides_refusal(bool by_card)
{
	if (GL_LIKELY(!current))
		return false;
	current->by_card |= by_card;
	return true;
}

void gl_count_refusal(struct gl_gpu *gpu, uint64_t bytes)
{
	if (gl_memory_wait_hides_refusal(false))
		return;
	gl_add_relaxed(&gpu->device->refused, 1);
	gl_log(GL_WARN, "device %d: %llu bytes refused: %llu of %llu in use", gpu->ordinal, (unsigned long long)bytes,
	       (unsigned long long)gl_charged_bytes(gpu->index), (unsigned long long)gl_limit_bytes(gpu));
}

void gl_count_card_refusal(struct gl_gpu *gpu)
{
	if (gl_memory_wait_hides_refusal(true))
		return;
	gl_add_relaxed(&gpu->device->refused_by_card, 1);
	gl_log(GL_WARN, "device %d: the card itself is full, not the quota", gpu->ordinal);
}

static bool give_up(struct gl_memory_wait *w)
{
	current = w->before; /* from here on refusals count */
	if (w->by_card)
		gl_count_card_refusal(w->gpu);
	else
		gl_count_refusal(w->gpu, w->bytes);
	return false;
}

bool gl_memory_wait_again(struct gl_memory_wait *w)
{
	if (!w->may_wait)
		return false;
	if (!w->start_ns) {
		if (w->bytes > gl_limit_bytes(w->gpu))
			return give_up(w);
		begin_waiting(w); /* and one more try: memory freed before this did not wake the thread */
		return true;
	}
	uint64_t waited = gl_now_ns() - w->start_ns, bound = bound_ns(w->gpu);
	if (waited >= bound || gl_load_relaxed(&gl_self.capturing))
		return give_up(w);
	uint64_t left = bound - waited;
	/* The signal handler runs, and the thread tries again. */
	gl_futex_wait(&w->gpu->device->memory_change, w->seen, left < w->poll_ns ? left : w->poll_ns);
	announce(w);
	w->by_card = false;
	return true;
}

void gl_memory_wait_end(struct gl_memory_wait *w)
{
	if (!w->may_wait)
		return;
	current = w->before;
	if (!w->start_ns)
		return;
	gl_sub_relaxed(&w->gpu->account->memory_waiting, 1);
	gl_add_relaxed(&w->gpu->device->memory_waited_ns, gl_now_ns() - w->start_ns);
}

void gl_memory_freed(struct gl_gpu *gpu)
{
	if (current)
		return; /* memory that a failed try frees is no reason to wake other threads */
	struct gl_device *d = gpu->device;
	const struct gl_policy_device *p = gl_policy_of(gpu);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* frees before it reads who wants memory */
	bool others = p && gl_load_relaxed(&p->memory_wanted);
	if (GL_LIKELY(!gl_load_relaxed(&d->memory_wanted) && !others))
		return;
	gl_store_relaxed(&d->memory_wanted, 0u);
	gl_add_relaxed(&d->memory_freed, 1);
	__atomic_fetch_add(&d->memory_change, 1, __ATOMIC_RELEASE);
	gl_futex_wake(&d->memory_change, INT_MAX);
	if (others && gl_self.daemon.registered)
		gl_doorbell_ring();
}
