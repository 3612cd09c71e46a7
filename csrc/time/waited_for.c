/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds launches for which running work waits on the GPU.  Such work cannot end before the launch is made, so the
 * launch goes, whatever the limit, the debt and the turn.  Work that ends later than the known costs of its launches
 * may be waiting.  A launch of this process can only be the one that it waits for
 *
 *   - if the process has nothing late itself, while another process of the gang, or another GPU of this one, has: it is
 *     behind its siblings, and goes on until it has caught up with them;
 *   - or if it goes into another stream than the work that is late.  That is rarer, and work may be late for other reasons,
 *     so the launch waits longer, and one goes at a time.
 *
 * Work that waited is charged its usual cost, and nothing is learned from it: its length was that of the delay.
 */
#include "process/gang.h"
#include "time/gate.h"
#include "time/types.h"

#define RANK_LATE_NS UINT64_C(1000000)
#define STREAM_LATE_NS UINT64_C(20000000)
#define CATCH_UP_NS UINT64_C(10000000) /* of GPU time, in which a rank goes freely; then one each STREAM_LATE_NS */
#define CATCH_UP_AHEAD_NS UINT64_C(1000000)
#define ENDED_SOON_NS UINT64_C(3000000)
#define WAITED_NS UINT64_C(500000)     /* minimum delay beyond its cost: a shorter one may be plain work */

/* The delay of the next mark beyond its expected time; without a mark, the delay of the end of all unfinished work. */
static uint64_t lateness(const struct gl_account *account, uint64_t now)
{
	uint32_t due_us = gl_load_relaxed(&account->due_us);
	int32_t late_us = (int32_t)((uint32_t)(now / 1000) - due_us);
	uint64_t end = gl_load_relaxed(&account->queue_end_ns);
	if (due_us)
		return late_us > 0 ? (uint64_t)late_us * 1000 : 0;
	return end && now > end ? now - end : 0;
}

static bool is_late(const struct gl_account *account, uint64_t now, uint64_t by_ns, uint32_t sharers)
{
	uint64_t left = gl_load_relaxed(&account->outstanding_ns);
	return left && lateness(account, now) > by_ns + (sharers - 1) * (left + by_ns);
}

static bool slot_is_late(const struct gl_slot *slot, uint32_t but, uint64_t now, uint64_t by_ns, uint32_t sharers)
{
	uint32_t devices = gl_load_relaxed(&gl_self.usage->gang.devices);
	for (uint32_t d = 0; d < GL_MAX_DEVICES && devices >> d; d++)
		if (devices >> d & 1 && d != but && is_late(&slot->account[d], now, by_ns, sharers))
			return true;
	return false;
}

static bool is_another_late(const struct gl_gpu *gpu, uint64_t now, uint64_t by_ns)
{
	uint32_t used = gl_load_relaxed(&gl_self.usage->header.slots_used), sharers = gl_sharers(gpu);
	for (uint32_t i = 0; i < used && i < GL_MAX_SLOTS; i++) {
		const struct gl_slot *slot = &gl_self.usage->slot[i];
		uint32_t but = (int)i == gl_self.slot ? gpu->index : GL_MAX_DEVICES;
		if ((gl_load_acquire(&slot->generation) & 1) && slot_is_late(slot, but, now, by_ns, sharers))
			return true;
	}
	return false;
}

static bool has_another_stream(struct gl_meter *m, const struct gl_gpu *gpu, const struct gl_stream *stream)
{
	struct gl_stream *s;
	for (uint32_t i = 0; (s = gl_stream_next(m, &i));)
		if (s != stream && s->clock->gpu == gpu && (gl_has_launches(s) || gl_has_marks(s)))
			return true;
	return false;
}

static bool is_due(const struct gl_gpu_meter *meter, uint64_t now)
{
	return now - gl_load_relaxed(&meter->released_ns) >= STREAM_LATE_NS;
}

bool gl_is_sibling_at_work(const struct gl_gpu *gpu)
{
	uint32_t used = gl_load_relaxed(&gl_self.usage->header.slots_used);
	uint32_t devices = gl_load_relaxed(&gl_self.usage->gang.devices);
	if (!gl_gang_has(gpu))
		return false;
	for (uint32_t i = 0; i < used && i < GL_MAX_SLOTS; i++)
		for (uint32_t d = 0; d < GL_MAX_DEVICES && devices >> d; d++)
			if (devices >> d & 1 && ((int)i != gl_self.slot || d != gpu->index) &&
			    gl_load_relaxed(&gl_self.usage->slot[i].account[d].outstanding_ns))
				return true;
	return false;
}

/* Launches while catching up are bounded: no sibling can be ahead by more than it may have unfinished. */
static bool has_caught_up(struct gl_gpu_meter *meter, const struct gl_gpu *gpu)
{
	uint64_t spent = gl_load_relaxed(&gpu->account->spent_ns), *from = &meter->behind_from_ns;
	if (!gl_load_relaxed(from))
		gl_store_relaxed(from, spent ? spent : 1);
	return spent > gl_load_relaxed(from) + CATCH_UP_NS;
}

static bool is_behind(struct gl_gpu_meter *meter, const struct gl_gpu *gpu, uint64_t now)
{
	if (!gl_gang_has(gpu))
		return false;
	if (gl_load_relaxed(&gpu->account->outstanding_ns) >= CATCH_UP_AHEAD_NS ||
	    is_late(gpu->account, now, RANK_LATE_NS, gl_sharers(gpu)))
		return is_due(meter, now) && is_another_late(gpu, now, STREAM_LATE_NS); /* each may wait for the other */
	if (!is_another_late(gpu, now, RANK_LATE_NS))
		return false;
	return !has_caught_up(meter, gpu) || is_due(meter, now);
}

bool gl_is_waited_for(struct gl_meter *m, const struct gl_gpu *gpu, const struct gl_stream *stream)
{
	struct gl_gpu_meter *meter = &m->gpu[gpu->index];
	uint64_t now = gl_now_ns();
	bool other_stream = is_late(gpu->account, now, STREAM_LATE_NS, gl_sharers(gpu)) && is_due(meter, now) &&
			    has_another_stream(m, gpu, stream);
	if (!other_stream && !is_behind(meter, gpu, now))
		return false;
	gl_store_relaxed(&meter->released_ns, now);
	gl_add_relaxed(&gl_self.usage->gang.released, 1);
	gl_store_relaxed(&gl_self.usage->gang.released_at_ns, now);
	return true;
}

void gl_goes_by_itself(struct gl_meter *m, const struct gl_gpu *gpu)
{
	gl_store_relaxed(&m->gpu[gpu->index].behind_from_ns, 0);
}

static bool was_closed_at(uint64_t at_ns)
{
	const struct gl_gang *g = &gl_self.usage->gang;
	uint64_t closed = gl_load_relaxed(&g->closed_at_ns), opened = gl_load_relaxed(&g->opened_at_ns);
	return closed && at_ns > closed && (at_ns < opened || opened < closed);
}

bool gl_has_waited(const struct gl_gpu *gpu, uint64_t from_ns, uint64_t to_ns, uint64_t cost_ns, bool alone)
{
	uint64_t released = gl_load_relaxed(&gl_self.usage->gang.released_at_ns);
	if (GL_LIKELY(!released) || to_ns - from_ns < cost_ns + WAITED_NS)
		return false;
	if (alone && gl_gang_has(gpu) && was_closed_at(to_ns))
		return true; /* siblings are held back then, so the launch that it waits for is not made otherwise */
	return released > from_ns && released <= to_ns && to_ns - released <= ENDED_SOON_NS + 2 * cost_ns;
}
