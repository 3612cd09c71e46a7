/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory that no call requested by size: contexts, code, the driver's rounding.  It is measured: NVML's figure of
 * this process, less the charges of all requests.  NVML does not count managed memory in a process's figure (measured:
 * 512 MiB touched by the GPU do not show), so it does not count here either.  NVML also leaves out memory imported from
 * another process while that one lives; of the figures with and without it, the one nearer to the last is used.
 *
 * A reading takes about 17 us.  So it is only taken after an event that costs memory (marked), after a change of 32 MiB,
 * after some thousand reservations (small pieces are rounded up to 512 bytes), and when the quota is nearly used up.
 * Otherwise gl_overhead_refresh is a handful of loads.
 *
 * Locks: overhead_lock (one measurement per gpu at a time), then the pools' books_lock.  Hooks and reserve.c call.
 */
#include "process/limits.h"
#include "memory/nvml_usage.h"

#define MIB (UINT64_C(1) << 20)
#define GROWTH (32 * MIB)
#define NEARLY_FULL (64 * MIB)
#define PIECE (2 * MIB) /* the driver takes device memory in pieces of this size */
#define RESERVES 4096
#define PAUSE_NS 1000000u /* between two measurements, unless rounding alone may have used up the quota by now */

void gl_overhead_mark_all(void)
{
	for (int i = 0; i < gl_self.gpu_count; i++)
		gl_overhead_mark(&gl_self.gpu[i]);
}

static uint64_t charged(const struct gl_gpu *gpu)
{
	return gl_ledger_account(gl_self.usage, gpu->index, (uint32_t)gl_self.slot);
}

/* Requested memory that NVML's figure includes.  Call with overhead_lock held. */
static uint64_t asked(const struct gl_gpu *gpu)
{
	uint64_t all = charged(gpu);
	uint64_t rest = gpu->overhead_bytes + gl_load_relaxed(&gpu->account->kind_bytes[GL_MEM_MANAGED]);
	rest += gl_load_relaxed(&gpu->graph_unused_bytes); /* charged, but the driver only takes it at the first launch */
	return all > rest ? all - rest : 0;
}

static uint64_t floor_bytes(const struct gl_gpu *gpu)
{
	return gl_load_relaxed(&gpu->account->contexts) * gl_load_relaxed(&gpu->device->context_bytes);
}

/* Accepts a higher figure at once.  A lower one may have been read while another thread's reservation was not yet memory;
 * unless nothing moved (`believe`), it must be seen twice.  Call with overhead_lock held. */
static void apply(struct gl_gpu *gpu, uint64_t measured, bool believe)
{
	uint64_t low = floor_bytes(gpu), to = measured;
	if (!believe && measured < gpu->overhead_bytes) {
		to = measured > gpu->overhead_seen ? measured : gpu->overhead_seen;
		if (to > gpu->overhead_bytes)
			to = gpu->overhead_bytes;
	}
	if (to < low)
		to = low;
	else if (to > measured)
		gl_overhead_mark(gpu);
	gl_store_relaxed(&gpu->overhead_seen, measured);
	gl_recharge(gpu, GL_MEM_OVERHEAD, gpu->overhead_bytes, to);
	gl_store_relaxed(&gpu->overhead_bytes, to);
}

static uint64_t apart(uint64_t a, uint64_t b)
{
	return a > b ? a - b : b - a;
}

/* The figure less the requested memory; the figure may include imported memory or not. */
static uint64_t beyond(const struct gl_gpu *gpu, uint64_t used, uint64_t asked_bytes)
{
	uint64_t with = used > asked_bytes ? used - asked_bytes : 0, imported = gl_imported_bytes(gpu);
	if (GL_LIKELY(!imported))
		return with;
	uint64_t own = asked_bytes > imported ? asked_bytes - imported : 0, without = used > own ? used - own : 0;
	uint64_t last = gl_load_relaxed(&gpu->overhead_bytes);
	return apart(without, last) <= apart(with, last) ? without : with;
}

/* NVML's figure less the requested memory, read while as few calls as possible are running.  False: NVML does not list
 * this process. */
static bool look(struct gl_gpu *gpu, uint64_t *measured, bool *steady)
{
	uint64_t used = 0;
	bool seen = false;
	*steady = false;
	for (int tries = 0; tries < 4 && !*steady; tries++) {
		bool still = gl_load_acquire(&gpu->in_flight) == 0;
		uint64_t before = asked(gpu);
		seen = gl_nvml_own_bytes(gpu, &used);
		gl_pools_refresh(gpu); /* NVML's figure includes growth since `before` */
		uint64_t after = asked(gpu), most = after > before ? after : before;
		*steady = before == after && still && gl_load_acquire(&gpu->in_flight) == 0;
		*measured = beyond(gpu, used, most);
	}
	return seen;
}

static bool measure(struct gl_gpu *gpu)
{
	bool steady = false, none = gl_load_relaxed(&gpu->account->contexts) == 0;
	uint64_t measured = 0;
	gl_store_release(&gpu->overhead_dirty, 0u);
	gl_pools_refresh(gpu);
	bool seen = !none && look(gpu, &measured, &steady);
	gl_store_relaxed(&gpu->overhead_blind, !seen && !none);
	if (seen)
		apply(gpu, measured, steady);
	else /* not listed: no overhead without a context, else the usual cost of contexts */
		apply(gpu, floor_bytes(gpu), true);
	gl_store_relaxed(&gpu->overhead_with_bytes, charged(gpu));
	gl_store_relaxed(&gpu->overhead_at_bytes, charged(gpu));
	gl_store_relaxed(&gpu->overhead_at_ns, gl_now_ns());
	gl_store_relaxed(&gpu->overhead_reserves, 0u);
	return seen;
}

bool gl_overhead_measure(struct gl_gpu *gpu)
{
	gl_lock(&gpu->overhead_lock);
	bool seen = measure(gpu);
	gl_unlock(&gpu->overhead_lock);
	return seen;
}

void gl_overhead_refresh(struct gl_gpu *gpu)
{
	uint64_t now = charged(gpu), lowest = gl_load_relaxed(&gpu->overhead_at_bytes);
	uint64_t limit = gl_limit_bytes(gpu), total = gl_charged_bytes(gpu->index);
	uint64_t left = limit > total ? limit - total : 0;
	/* A lost increment between threads does no harm. */
	uint32_t reserves = gl_load_relaxed(&gpu->overhead_reserves) + 1;
	gl_store_relaxed(&gpu->overhead_reserves, reserves);
	if (now < lowest)
		gl_store_relaxed(&gpu->overhead_at_bytes, now);
	uint64_t unseen = PIECE * reserves; /* possible rounding since the last measurement */
	bool dirty = gl_load_relaxed(&gpu->overhead_dirty), near = left < NEARLY_FULL + unseen;
	bool changed = now > lowest + GROWTH || now + GROWTH < gl_load_relaxed(&gpu->overhead_with_bytes);
	if (GL_LIKELY(!dirty && !near && !changed && reserves < RESERVES))
		return;
	if (gl_load_relaxed(&gpu->overhead_blind) || (!dirty && gl_load_relaxed(&gpu->account->contexts) == 0))
		return;
	if (left >= unseen && gl_now_ns() - gl_load_relaxed(&gpu->overhead_at_ns) < PAUSE_NS)
		return;
	if (!gl_try_lock(&gpu->overhead_lock))
		return;
	(void)measure(gpu);
	gl_unlock(&gpu->overhead_lock);
}

uint64_t gl_overhead_watch(struct gl_gpu *gpu)
{
	/* Far from the quota an old figure suffices: only a large call could exceed the quota from there. */
	uint64_t limit = gl_limit_bytes(gpu), total = gl_charged_bytes(gpu->index);
	if (total > limit || limit - total < 4 * NEARLY_FULL)
		(void)gl_overhead_measure(gpu);
	return gl_load_relaxed(&gpu->overhead_bytes);
}

bool gl_overhead_fits_rounded(struct gl_gpu *gpu)
{
	uint64_t limit = gl_limit_bytes(gpu), total = gl_charged_bytes(gpu->index);
	if (GL_LIKELY(total <= limit && limit - total >= PIECE))
		return true;
	/* The figure is fresh: with so little left, gl_overhead_refresh measured before the reservation. */
	bool fits = gl_load_relaxed(&gpu->overhead_blind) || gl_overhead_fits(gpu, gl_load_relaxed(&gpu->overhead_bytes));
	if (!fits)
		gl_overhead_mark(gpu);
	return fits;
}

bool gl_overhead_fits(struct gl_gpu *gpu, uint64_t before)
{
	(void)gl_overhead_measure(gpu);
	if (!gl_over_limit(gpu) || gl_load_relaxed(&gpu->overhead_bytes) <= before)
		return true;
	(void)gl_segment_reap();
	if (gl_over_limit(gpu))
		(void)gl_pools_trim(gpu);
	return !gl_over_limit(gpu);
}
