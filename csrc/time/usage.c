/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts GPU time that is spent or outstanding, and tells the daemon when work begins and ends.
 */
#include <limits.h>

#include "process/limits.h"
#include "time/types.h"

#define RING_NS UINT64_C(1000000)
#define PAUSE_NS UINT64_C(1000000) /* after so long without a launch, the daemon is told of the next */

/* If no tenant has to make room, only tools that display usage read this value.  Then the clock is only read for the
 * first work. */
static void lengthen_queue(struct gl_gpu *gpu, bool had_none, uint64_t ns)
{
	uint64_t now = had_none ? gl_now_ns() : 0, end = gl_load_relaxed(&gpu->account->queue_end_ns);
	gl_store_relaxed(&gpu->account->queue_end_ns, (end > now ? end : now) + ns);
}

static void note_work(struct gl_meter *m, struct gl_gpu *gpu, bool had_none, uint64_t ns)
{
	const struct gl_policy_device *p = gl_policy_of(gpu);
	struct gl_gpu_meter *meter = &m->gpu[gpu->index];
	uint64_t now = gl_now_ns(), end = gl_load_relaxed(&gpu->account->queue_end_ns);
	bool paused = now - gl_load_relaxed(&meter->launched_ns) >= PAUSE_NS;
	gl_store_relaxed(&meter->launched_ns, now);
	gl_store_relaxed(&gpu->account->queue_end_ns, (end > now ? end : now) + ns);
	/* During its turn the daemon expects the tenant to have work. */
	if ((!had_none && !paused) || gl_load_relaxed(&p->exclusive_from_ns) ||
	    now - gl_load_relaxed(&meter->rang_ns) < RING_NS)
		return;
	gl_store_relaxed(&meter->rang_ns, now);
	gl_doorbell_ring();
}

void gl_queue_reached(const struct gl_gpu *gpu, uint64_t t)
{
	gl_store_relaxed(&gpu->account->queue_end_ns, t + gl_load_relaxed(&gpu->account->outstanding_ns));
}

void gl_queue_waited(struct gl_meter *m, const struct gl_gpu *gpu)
{
	const struct gl_policy_device *p = gl_policy_of(gpu);
	uint64_t now = gl_now_ns(), *rang = &m->gpu[gpu->index].rang_ns;
	if (gl_load_relaxed(&gpu->account->outstanding_ns))
		return;
	gl_store_relaxed(&gpu->account->queue_end_ns, now);
	if (!p || gl_load_relaxed(&p->priority) < GL_PRIORITY_HIGH || now - gl_load_relaxed(rang) < RING_NS)
		return;
	gl_store_relaxed(rang, now);
	gl_doorbell_ring();
}

/* The part of the ns that is added to the time spent; the rest is deducted from the refund. */
static uint64_t beyond(uint64_t *refund_ns, uint64_t ns)
{
	uint64_t refund = gl_load_relaxed(refund_ns), used;
	do
		used = refund < ns ? refund : ns;
	while (GL_UNLIKELY(used) && !__atomic_compare_exchange_n(refund_ns, &refund, refund - used, false, __ATOMIC_RELAXED,
								 __ATOMIC_RELAXED));
	return ns - used;
}

static void spend(struct gl_meter *m, struct gl_gpu *gpu, uint64_t ns)
{
	gl_add_relaxed(&gpu->device->spent_ns, beyond(&gpu->device->refund_ns, ns));
	gl_add_relaxed(&gpu->account->spent_ns, beyond(&m->gpu[gpu->index].refund_ns, ns));
}

void gl_spend(struct gl_meter *m, struct gl_gpu *gpu, uint64_t ns)
{
	bool had_none = gl_add_relaxed(&gpu->account->outstanding_ns, ns) == 0;
	spend(m, gpu, ns);
	if (gl_self.daemon.registered && gl_gpu_shared(gpu))
		note_work(m, gpu, had_none, ns); /* last, so that a woken thread sees the time as spent */
	else
		lengthen_queue(gpu, had_none, ns);
}

void gl_spend_correct(struct gl_meter *m, struct gl_gpu *gpu, uint64_t charged_ns, uint64_t measured_ns)
{
	gl_sub_relaxed(&gpu->account->outstanding_ns, charged_ns);
	if (measured_ns > charged_ns) {
		spend(m, gpu, measured_ns - charged_ns);
	} else if (measured_ns < charged_ns) {
		gl_add_relaxed(&gpu->device->refund_ns, charged_ns - measured_ns);
		gl_add_relaxed(&m->gpu[gpu->index].refund_ns, charged_ns - measured_ns);
	}
}
