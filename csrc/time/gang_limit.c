/* SPDX-License-Identifier: Apache-2.0
 *
 * One limit for a gang's processes, without a daemon or while the tenant is alone on its GPUs.  Each process holds back
 * its own launches, but all use one bucket in the tenant's segment.  It is open or closed for all at the same moments,
 * so no process waits on the GPU for one that is held back.  The bucket counts time in which at least one of the gang's
 * GPUs works, so a limit of P percent gives P percent of the speed, however the work is spread.
 *
 * Windows are much longer than a collective, because at the end of each one the ranks that are behind catch up
 * (waited_for.c).
 */
#include "process/gang.h"
#include "process/limits.h"
#include "time/gate.h"
#include "time/types.h"

#define WINDOW_NS UINT64_C(100000000)    /* of GPU time in a window, at a limit of 100 percent */
#define MIN_WINDOW_NS UINT64_C(25000000)
#define AHEAD_NS UINT64_C(6000000)       /* most unfinished GPU time of a process: no window ends later by more */

static struct gl_clocked bucket(uint32_t percent)
{
	struct gl_gang *g = &gl_self.usage->gang;
	uint64_t window = WINDOW_NS / 100 * percent;
	if (window < MIN_WINDOW_NS)
		window = MIN_WINDOW_NS;
	return (struct gl_clocked){&g->granted_ns, &g->granted_at_ns, &g->spent_ns, NULL, percent, window, window};
}

/* The gang's limit is that of the GPU with the lowest one. */
uint32_t gl_gang_percent(uint32_t percent)
{
	uint32_t devices = gl_load_relaxed(&gl_self.usage->gang.devices);
	for (uint32_t i = 0; !gl_self.daemon.policy && i < GL_MAX_DEVICES; i++) {
		const struct gl_device *d = &gl_self.usage->device[i];
		bool in_gang = devices >> i & 1 && gl_load_acquire(&d->ready);
		uint32_t other = in_gang ? gl_load_relaxed(&d->compute_limit_percent) : 100;
		if (other >= 1 && other < percent)
			percent = other;
	}
	return percent;
}

void gl_gang_settle(void)
{
	gl_clocked_settle(bucket(100));
}

void gl_gang_spend(const struct gl_gpu *gpu, uint64_t from_ns, uint64_t to_ns, uint64_t busy_ns, uint64_t now_ns)
{
	struct gl_gang *g = &gl_self.usage->gang;
	if (gl_gang_has(gpu))
		gl_add_relaxed(&g->spent_ns, gl_cover_take(&g->cover, from_ns, to_ns, busy_ns, now_ns));
}

static bool is_within_ahead(const struct gl_gpu *gpu)
{
	return gl_load_relaxed(&gpu->account->outstanding_ns) < AHEAD_NS;
}

bool gl_gang_open(const struct gl_gpu *gpu, uint32_t percent)
{
	struct gl_gang *g = &gl_self.usage->gang;
	struct gl_clocked b = bucket(gl_gang_percent(percent));
	if (gl_load_relaxed(&g->is_closed))
		return false;
	gl_clocked_refill(b);
	if (gl_clocked_in_hand(b) > 0)
		return is_within_ahead(gpu);
	gl_store_relaxed(&g->closed_at_ns, gl_now_ns());
	gl_store_relaxed(&g->is_closed, 1u);
	return false;
}

uint64_t gl_gang_sleep(const struct gl_gpu *gpu, uint32_t percent)
{
	struct gl_gang *g = &gl_self.usage->gang;
	uint32_t closed = gl_load_relaxed(&g->is_closed);
	uint64_t ns = closed ? gl_clocked_sleep(bucket(gl_gang_percent(percent))) : 0;
	if (ns)
		return ns;
	if (closed) {
		gl_store_relaxed(&g->opened_at_ns, gl_now_ns());
		gl_store_relaxed(&g->is_closed, 0u);
	}
	uint64_t outstanding = gl_load_relaxed(&gpu->account->outstanding_ns);
	return outstanding < AHEAD_NS / 2 ? 0 : outstanding - AHEAD_NS / 2;
}
