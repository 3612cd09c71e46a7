/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's GPU-time bucket on a device, in the tenant's segment, so that all its processes draw on one.  GPU time
 * is granted by the wall clock and spent by launches; a launch may go while granted > spent.  Spent may pass granted
 * (a kernel is longer than what was in hand): the debt is paid before the next launch.  Granted and spent only grow.
 *
 * A tenant that ran dry goes on when it has RESUME_NS of wall time's worth in hand, so that small launches run in
 * bursts and not one by one.  Time not used is kept up to KEEP_NS's worth: enough for a program that works in bursts
 * to stay below its limit unhindered, too little to pass it over a second.  Nobody holds a lock while waiting.
 */
#include "meter.h"

#define RESUME_NS UINT64_C(10000000)
#define KEEP_NS UINT64_C(100000000)
#define REFILL_NS UINT64_C(100000)
enum { LONGEST_SLEEP_NS = 50000000, SHORTEST_SLEEP_NS = 30000 };

uint32_t gl_compute_percent(const struct gl_gpu *gpu)
{
	uint32_t percent = gl_peek(&gpu->device->compute_limit_percent);
	return percent >= 1 && percent <= 100 ? percent : 1; /* nonsense in the segment never means no limit */
}

static void refill(struct gl_device *d, uint32_t percent)
{
	uint64_t now = gl_now_ns(), at = gl_peek(&d->granted_at_ns);
	if (now - at < REFILL_NS || now < at)
		return;
	if (!__atomic_compare_exchange_n(&d->granted_at_ns, &at, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return; /* another thread or process does it */
	uint64_t granted = gl_peek(&d->granted_ns), spent = gl_peek(&d->spent_ns);
	uint64_t earned = (at ? now - at : RESUME_NS) / 100 * percent, ceiling = spent + KEEP_NS / 100 * percent;
	if (granted + earned > ceiling)
		earned = ceiling > granted ? ceiling - granted : 0;
	gl_add(&d->granted_ns, earned);
}

static int64_t in_hand(struct gl_device *d)
{
	return (int64_t)(gl_peek(&d->granted_ns) - gl_peek(&d->spent_ns));
}

bool gl_bucket_open(struct gl_meter *m, struct gl_gpu *gpu)
{
	struct gl_device *d = gpu->device;
	uint32_t percent = gl_compute_percent(gpu);
	if (GL_UNLIKELY(gl_peek(&d->suspended)))
		return false;
	if (percent == 100)
		return true;
	refill(d, percent);
	int64_t hand = in_hand(d);
	/* Those already waiting come first: a newcomer does not live on what they are waiting for. */
	return gl_peek(&m->waiting[gpu->index]) ? hand >= (int64_t)(RESUME_NS / 100 * percent) : hand > 0;
}

static uint64_t sleep_for(struct gl_device *d, uint32_t percent)
{
	int64_t lacking = (int64_t)(RESUME_NS / 100 * percent) - in_hand(d);
	if (lacking <= 0)
		return gl_peek(&d->suspended) ? LONGEST_SLEEP_NS : 0;
	uint64_t ns = (uint64_t)lacking * 100 / percent;
	return ns > LONGEST_SLEEP_NS ? LONGEST_SLEEP_NS : ns < SHORTEST_SLEEP_NS ? SHORTEST_SLEEP_NS : ns;
}

void gl_bucket_wait(struct gl_meter *m, struct gl_gpu *gpu, CUcontext context)
{
	struct gl_device *d = gpu->device;
	uint64_t start = gl_now_ns();
	gl_add(&m->waiting[gpu->index], 1);
	for (;;) {
		uint32_t word = gl_load(&d->wake);
		uint32_t percent = gl_compute_percent(gpu);
		gl_marks_collect_all(m, context);
		refill(d, percent);
		uint64_t ns = percent == 100 && !gl_peek(&d->suspended) ? 0 : sleep_for(d, percent);
		if (ns == 0)
			break;
		gl_futex_wait(&d->wake, word, ns); /* a signal handler runs, and we look again */
	}
	gl_sub(&m->waiting[gpu->index], 1);
	gl_add(&d->throttled_ns, gl_now_ns() - start);
	gl_add(&d->throttled_count, 1);
}

static void spend(struct gl_meter *m, struct gl_gpu *gpu, uint64_t ns)
{
	uint64_t refund = gl_peek(&m->refund_ns[gpu->index]);
	while (GL_UNLIKELY(refund)) {
		uint64_t used = refund < ns ? refund : ns;
		if (!__atomic_compare_exchange_n(&m->refund_ns[gpu->index], &refund, refund - used, false, __ATOMIC_RELAXED,
						 __ATOMIC_RELAXED))
			continue;
		ns -= used;
		break;
	}
	gl_add(&gpu->device->spent_ns, ns);
	gl_add(&gpu->account->spent_ns, ns);
}

void gl_spend(struct gl_meter *m, struct gl_gpu *gpu, uint64_t ns)
{
	gl_add(&gpu->account->outstanding_ns, ns);
	spend(m, gpu, ns);
}

void gl_spend_correct(struct gl_meter *m, struct gl_gpu *gpu, uint64_t charged_ns, uint64_t measured_ns)
{
	gl_sub(&gpu->account->outstanding_ns, charged_ns);
	if (measured_ns > charged_ns)
		spend(m, gpu, measured_ns - charged_ns);
	else
		gl_add(&m->refund_ns[gpu->index], charged_ns - measured_ns);
}
