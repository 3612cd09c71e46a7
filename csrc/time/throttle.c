/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides if a launch may go now.  GPU time is granted and spent; a launch may go while granted > spent.  Spent may exceed
 * granted (a kernel is longer than the time left): the debt is paid before the next launch.  Spent only grows.  The daemon
 * takes an unused grant back by granting less later.
 *
 * GPU time is granted by
 *   - the daemon, while other tenants want the GPU too (policy->shared) and its heartbeat is fresh.  It counts from the same
 *     zero as the usage segment.  A grant may have a start time, so that a turn begins on time without the daemon.  In
 *     addition, run_ahead_ns bounds the process's unfinished work.  While the process has the GPU to itself, it submits one
 *     launch more than that, so that the GPU does not idle between long kernels.
 *   - otherwise the wall clock, in the tenant's segment, so that all its processes share one bucket: at the limit, or at the
 *     request if the daemon is away and there is no limit.
 *   - in addition the wall clock with a bucket of its own, for a process whose environment allows less than its tenant's
 *     quota.
 * No launch of a suspended tenant goes.  The words of the policy are read one by one; the clock is only read if they do not
 * let the launch go.
 *
 * By wall clock, a tenant whose bucket was empty continues when it has RESUME_NS of wall time's worth, so that small
 * launches run in bursts and not one by one.  Unused time is kept up to KEEP_NS's worth: enough for a program that works in
 * bursts below its limit to run without waits, too little to exceed the limit over a second.  Time that was spent while the
 * wall clock did not grant is no debt to it.
 *
 * A waiting thread increments account->waiting and sleeps on the policy's futex (without a policy, the device's), at most
 * for MAX_SLEEP_NS.  If it waits for a grant, it rings the usage segment's doorbell.  While its process has unfinished work,
 * it checks the marks in between, and rings when all work is done, since the next tenant's turn may depend on that.  The
 * doorbell also rings when a process launches that has no unfinished work, or that has not launched for a millisecond: the
 * end of work that the program does not wait for is not known.
 * A waiting thread holds no lock.
 */
#include <limits.h>

#include "base/testpoint.h"
#include "process/gang.h"
#include "process/limits.h"
#include "time/gate.h"
#include "time/types.h"

#define RESUME_NS UINT64_C(10000000)
#define KEEP_NS UINT64_C(100000000)
#define MARK_NS UINT64_C(1000000)      /* between marks where launches are held back */
#define FREE_MARK_NS UINT64_C(4000000) /* and where not: only statistics depend on them */
#define MIN_MARK_NS UINT64_C(250000)
#define MAX_START_AHEAD_NS UINT64_C(1000000000) /* further off is nonsense */
#define STUCK_NS UINT64_C(200000000)   /* a wait for unfinished work ends if the work has not decreased for so long */
enum { MAX_SLEEP_NS = 50000000, MIN_LOOK_NS = 50000, MAX_LOOK_NS = 500000,
       OWN_LOOK_NS = 2000000, SIBLING_LOOK_NS = 500000 };

/* ---- the rules in force ---- */

static bool has_own(const struct gl_gpu *gpu, uint32_t percent)
{
	return gpu->own_compute_percent < percent;
}

uint64_t gl_bucket_mark_ns(const struct gl_gpu *gpu)
{
	const struct gl_policy_device *p = gl_policy_of(gpu);
	uint64_t ahead = gl_shared(p) ? gl_load_relaxed(&p->run_ahead_ns) : 0;
	if (ahead && ahead < 4 * MARK_NS)
		return ahead / 4 > MIN_MARK_NS ? ahead / 4 : MIN_MARK_NS;
	uint32_t percent = gl_limit_percent(gpu, p);
	return gl_shared(p) || percent < 100 || has_own(gpu, percent) ? MARK_NS : FREE_MARK_NS;
}

/* ---- by the wall clock ---- */

static struct gl_clocked tenants_bucket(const struct gl_gpu *gpu, uint32_t percent)
{
	struct gl_device *d = gpu->device;
	return (struct gl_clocked){&d->granted_ns, &d->granted_at_ns, &d->spent_ns, &d->refund_ns, percent,
				   .keep_ns = KEEP_NS / 100 * percent, .resume_ns = RESUME_NS / 100 * percent};
}

static struct gl_clocked own_bucket(struct gl_meter *m, struct gl_gpu *gpu)
{
	uint32_t percent = gpu->own_compute_percent;
	return (struct gl_clocked){&m->gpu[gpu->index].own_granted_ns, &m->gpu[gpu->index].own_at_ns, &gpu->account->spent_ns,
				   &m->gpu[gpu->index].refund_ns, percent,
				   .keep_ns = KEEP_NS / 100 * percent, .resume_ns = RESUME_NS / 100 * percent};
}

static bool clocked_open(struct gl_meter *m, struct gl_gpu *gpu, struct gl_clocked b)
{
	gl_clocked_refill(b);
	int64_t hand = gl_clocked_in_hand(b);
	/* Threads that already wait come first: a new launch must not use what they are waiting for. */
	return gl_load_relaxed(&m->gpu[gpu->index].waiting) ? hand >= (int64_t)b.resume_ns : hand > 0;
}

static void goes_unpaced(struct gl_meter *m, struct gl_gpu *gpu)
{
	if (GL_UNLIKELY(!gl_load_relaxed(&m->gpu[gpu->index].unpaced)))
		gl_store_relaxed(&m->gpu[gpu->index].unpaced, 1);
}

/* The wall clock takes over: the bucket begins with neither credit nor debt. */
static void begin_pacing(struct gl_meter *m, struct gl_gpu *gpu)
{
	if (GL_LIKELY(!gl_load_relaxed(&m->gpu[gpu->index].unpaced)) ||
	    !__atomic_exchange_n(&m->gpu[gpu->index].unpaced, 0, __ATOMIC_RELAXED))
		return;
	gl_clocked_settle(tenants_bucket(gpu, 100));
	gl_gang_settle();
}

/* The gang's bucket paces the gpu.  The device's bucket begins with neither credit nor debt when it takes over
 * again. */
static bool is_of_gang(struct gl_meter *m, const struct gl_gpu *gpu)
{
	uint32_t *in_gang = &m->gpu[gpu->index].in_gang;
	if (GL_UNLIKELY(gl_gang_has(gpu))) {
		gl_store_relaxed(in_gang, 1u);
		return true;
	}
	if (GL_UNLIKELY(gl_load_relaxed(in_gang)) && __atomic_exchange_n(in_gang, 0, __ATOMIC_RELAXED))
		gl_clocked_settle(tenants_bucket(gpu, 100));
	return false;
}

/* ---- by the daemon ---- */

static bool granted(const struct gl_gpu *gpu, const struct gl_policy_device *p)
{
	return gl_really_spent(&gpu->device->spent_ns, &gpu->device->refund_ns) < gl_load_relaxed(&p->granted_ns);
}

/* Remaining time of the submitted work, if the GPU does nothing else; UINT64_MAX: not known.  It is reliable for one launch.
 * After that the GPU must reach a mark first, since kernels may take longer than before. */
static uint64_t queued(const struct gl_meter *m, const struct gl_gpu *gpu, const struct gl_policy_device *p, uint64_t now)
{
	const struct gl_gpu_meter *meter = &m->gpu[gpu->index];
	uint64_t from = gl_load_relaxed(&p->exclusive_from_ns), end = gl_load_relaxed(&gpu->account->queue_end_ns);
	if (!from || now < from || gl_load_relaxed(&meter->trusted_ns) == gl_load_relaxed(&meter->own_until_ns))
		return UINT64_MAX;
	return end > now ? end - now : 0;
}

static bool within_run_ahead(struct gl_meter *m, const struct gl_gpu *gpu, const struct gl_policy_device *p)
{
	uint64_t ahead = gl_load_relaxed(&p->run_ahead_ns);
	if (ahead == 0 || gl_load_relaxed(&gpu->account->outstanding_ns) < ahead)
		return true;
	if (queued(m, gpu, p, gl_now_ns()) >= ahead)
		return false;
	gl_store_relaxed(&m->gpu[gpu->index].trusted_ns, gl_load_relaxed(&m->gpu[gpu->index].own_until_ns));
	return true;
}

/* The time until the grant may be used. */
static uint64_t until_start(const struct gl_policy_device *p, uint64_t now)
{
	uint64_t start = gl_load_relaxed(&p->start_ns);
	return start > now && start - now < MAX_START_AHEAD_NS ? start - now : 0;
}

static bool has_started(const struct gl_policy_device *p)
{
	return !gl_load_relaxed(&p->start_ns) || !until_start(p, gl_now_ns());
}

static uint64_t look_again(uint64_t ns)
{
	return ns < MIN_LOOK_NS ? MIN_LOOK_NS : ns > MAX_LOOK_NS ? MAX_LOOK_NS : ns;
}

/* ---- the gate ---- */

bool gl_bucket_free(struct gl_meter *m, struct gl_gpu *gpu)
{
	const struct gl_policy_device *p = gl_policy_of(gpu);
	if (gl_limit_percent(gpu, p) < 100 || gpu->own_compute_percent < 100 || gl_shared(p) || gl_suspended(gpu, p))
		return false;
	goes_unpaced(m, gpu);
	return true;
}

bool gl_bucket_open(struct gl_meter *m, struct gl_gpu *gpu)
{
	const struct gl_policy_device *p = gl_policy_of(gpu);
	if (GL_UNLIKELY(gl_suspended(gpu, p)))
		return false;
	uint32_t percent = gl_limit_percent(gpu, p);
	if (has_own(gpu, percent) && !clocked_open(m, gpu, own_bucket(m, gpu)))
		return false;
	if (gl_shared(p)) {
		bool go = granted(gpu, p) && has_started(p) && within_run_ahead(m, gpu, p);
		if (go)
			goes_unpaced(m, gpu);
		if (go || gl_policy_fresh(gl_now_ns()))
			return go;
		percent = gl_limit_percent(gpu, p); /* the first check may just have found the daemon away */
	}
	if (percent == 100) {
		goes_unpaced(m, gpu);
		return true;
	}
	begin_pacing(m, gpu);
	return is_of_gang(m, gpu) ? gl_gang_open(gpu, percent) : clocked_open(m, gpu, tenants_bucket(gpu, percent));
}

struct wait {
	uint64_t start_ns, outstanding_ns, progress_ns;
	bool throttled; /* it waits for GPU time, not only for its own work to finish */
};

/* Looks at the marks; tells the daemon when the last work has finished. */
static void collect(struct gl_meter *m, struct gl_gpu *gpu, CUcontext context, struct wait *w)
{
	uint64_t before = gl_load_relaxed(&gpu->account->outstanding_ns);
	gl_marks_collect_all(m, gl_self.daemon.registered ? NULL : context);
	uint64_t after = gl_load_relaxed(&gpu->account->outstanding_ns);
	if (before && !after && gl_self.daemon.registered)
		gl_doorbell_ring();
	if (after < w->outstanding_ns || !w->progress_ns)
		w->progress_ns = gl_now_ns();
	w->outstanding_ns = after;
}

/* A thread that waits for its process's own work continues when half of the run-ahead is done: in bursts too.  Work whose
 * end this process cannot see (for example in another thread's default stream) must not hold it for ever. */
static uint64_t policy_sleep(struct gl_meter *m, const struct gl_gpu *gpu, const struct gl_policy_device *p, uint64_t now,
			     struct wait *w)
{
	uint64_t outstanding = w->outstanding_ns, half = gl_load_relaxed(&p->run_ahead_ns) / 2, left;
	if (!granted(gpu, p)) {
		if (!w->throttled)
			gl_doorbell_ring(); /* the daemon can grant time, but cannot hasten this process's own work */
		w->throttled = true;
		return outstanding ? look_again(outstanding / 2) : MAX_SLEEP_NS;
	}
	if ((left = until_start(p, now))) {
		w->throttled = true;
		return left;
	}
	if (!half || outstanding <= half || now - w->progress_ns > STUCK_NS)
		return 0;
	if ((left = queued(m, gpu, p, now)) == UINT64_MAX)
		return look_again(outstanding - half);
	if (left > half)
		return look_again(left - half);
	gl_store_relaxed(&m->gpu[gpu->index].trusted_ns, gl_load_relaxed(&m->gpu[gpu->index].own_until_ns));
	return 0;
}

/* The time to sleep before the next look; 0: the launch may go. */
static uint64_t sleep_for(struct gl_meter *m, struct gl_gpu *gpu, const struct gl_policy_device *p, struct wait *w)
{
	uint64_t now = gl_now_ns(), ns = gl_suspended(gpu, p) ? MAX_SLEEP_NS : 0;
	bool by_daemon = gl_shared(p) && gl_policy_fresh(now);
	uint32_t percent = gl_limit_percent(gpu, p);
	if (!ns && has_own(gpu, percent))
		ns = gl_clocked_sleep(own_bucket(m, gpu));
	if (!ns && by_daemon)
		return policy_sleep(m, gpu, p, now, w);
	if (!ns && percent < 100) {
		begin_pacing(m, gpu);
		ns = is_of_gang(m, gpu) ? gl_gang_sleep(gpu, percent) : gl_clocked_sleep(tenants_bucket(gpu, percent));
	}
	w->throttled |= ns != 0;
	return ns;
}

void gl_bucket_wait(struct gl_meter *m, struct gl_gpu *gpu, const struct gl_stream *stream)
{
	struct gl_device *d = gpu->device;
	struct wait w = {.start_ns = gl_now_ns()};
	gl_add_relaxed(&m->gpu[gpu->index].waiting, 1);
	gl_add_relaxed(&gpu->account->waiting, 1);
	for (;;) {
		const struct gl_policy_device *p = gl_policy_of(gpu);
		/* A read-only mapping is enough to sleep on; the kernel only reads the word. */
		uint32_t *word = p ? (uint32_t *)(uintptr_t)&p->change : &d->wake, seen = gl_load_acquire(word);
		collect(m, gpu, stream ? stream->context : NULL, &w);
		uint64_t ns = sleep_for(m, gpu, p, &w);
		if (ns == 0)
			gl_goes_by_itself(m, gpu);
		if (ns == 0 || (!gl_suspended(gpu, p) && gl_is_waited_for(m, gpu, stream)))
			break;
		if (w.outstanding_ns && ns > OWN_LOOK_NS)
			ns = OWN_LOOK_NS; /* its measured time may be less than its charge */
		if (ns > SIBLING_LOOK_NS && gl_is_sibling_at_work(gpu))
			ns = SIBLING_LOOK_NS;
		gl_futex_wait(word, seen, ns); /* the signal handler runs, then the loop looks again */
	}
	gl_sub_relaxed(&gpu->account->waiting, 1);
	gl_sub_relaxed(&m->gpu[gpu->index].waiting, 1);
	if (w.throttled) {
		gl_add_relaxed(&d->throttled_ns, gl_now_ns() - w.start_ns);
		gl_add_relaxed(&d->throttled_count, 1);
	}
}
