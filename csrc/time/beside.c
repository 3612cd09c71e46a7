/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds out whether other processes' work may have been on the GPU beside this process's.
 */
#include "time/types.h"

enum { MANY_SLOTS = 64, /* further ones are not examined one by one */
       SLICES = 4,      /* queued work may take this many times longer beside other processes' work */
       LATE_NS = 10000000 };

/* Figures of a daemon that is away do not count.  Without a daemon, or alone on the GPU, other tenants cannot be
 * known. */
bool gl_exclusive(const struct gl_gpu *gpu, uint64_t since_ns)
{
	const struct gl_policy_device *p = gl_policy_of(gpu);
	if (!p || !gl_load_relaxed(&p->shared))
		return true;
	uint64_t from = gl_load_relaxed(&p->exclusive_from_ns);
	return from && since_ns >= from && !gl_load_relaxed(&gl_self.daemon.away);
}

/* True if another process of the tenant has unfinished work that may have been on the GPU since then.  A process that
 * has ended leaves such work in its account. */
static bool siblings_work(const struct gl_gpu *gpu, uint64_t since_ns)
{
	uint32_t used = gl_load_relaxed(&gl_self.usage->header.slots_used);
	if (used > MANY_SLOTS)
		return true;
	for (uint32_t i = 0; i < used; i++) {
		const struct gl_slot *slot = &gl_self.usage->slot[i];
		uint64_t left = gl_load_relaxed(&slot->account[gpu->index].outstanding_ns);
		if ((int)i != gl_self.slot && left && (gl_load_relaxed(&slot->generation) & 1) &&
		    since_ns < gl_load_relaxed(&slot->account[gpu->index].marked_ns) + SLICES * left + LATE_NS)
			return true;
	}
	return false;
}

bool gl_beside_siblings(const struct gl_meter *m, const struct gl_gpu *gpu, uint64_t since_ns)
{
	uint64_t until = gl_load_relaxed(&gpu->device->busy_until_ns);
	return (until > since_ns && until > gl_load_relaxed(&m->gpu[gpu->index].own_until_ns)) ||
	       siblings_work(gpu, since_ns);
}

uint32_t gl_sharers(const struct gl_gpu *gpu)
{
	const struct gl_policy_device *p = gl_policy_of(gpu);
	uint32_t sharers = p && gl_load_relaxed(&p->shared) ? gl_load_relaxed(&p->sharers) : 0;
	return sharers ? sharers : 1;
}
