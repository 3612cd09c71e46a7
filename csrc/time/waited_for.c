/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches that work on the GPU waits for.  Such work does not end before the launch has come, so the launch goes, whatever
 * the limit, the debt and the turn.  Who waits is seen by its end: work that is late, by what its launches are known to
 * cost, may be waiting.  A launch can only be what it waits for
 *
 *   - if the process has nothing late itself, while another process of the gang, or another GPU of this one, has: it is
 *     behind its siblings, and goes on until it has caught up with them;
 *   - or if it goes into another stream than the work that is late.  That is rarer, and work may be late for other reasons,
 *     so the launch waits longer, and one goes at a time.
 *
 * What waited is charged its usual cost and teaches nothing: it lasted as long as we made it last.
 */
#include "process/gang.h"
#include "time/gate.h"
#include "time/types.h"

#define RANK_LATE_NS UINT64_C(1000000)
#define STREAM_LATE_NS UINT64_C(20000000)
#define CATCH_UP_NS UINT64_C(100000000) /* a rank goes on freely for so long; then one launch each STREAM_LATE_NS */
#define CATCH_UP_AHEAD_NS UINT64_C(1000000)
#define ENDED_SOON_NS UINT64_C(3000000)

static bool is_late(const struct gl_account *account, uint64_t now, uint64_t by_ns, uint32_t sharers)
{
	uint64_t left = gl_load_relaxed(&account->outstanding_ns), end = gl_load_relaxed(&account->queue_end_ns);
	return left && end && now > end && now - end > by_ns + (sharers - 1) * (left + by_ns);
}

static bool slot_is_late(const struct gl_slot *slot, uint32_t but, uint64_t now, uint32_t sharers)
{
	uint32_t devices = gl_load_relaxed(&gl_self.usage->gang.devices);
	for (uint32_t d = 0; d < GL_MAX_DEVICES && devices >> d; d++)
		if (devices >> d & 1 && d != but && is_late(&slot->account[d], now, RANK_LATE_NS, sharers))
			return true;
	return false;
}

static bool is_another_late(const struct gl_gpu *gpu, uint64_t now)
{
	uint32_t used = gl_load_relaxed(&gl_self.usage->header.slots_used), sharers = gl_sharers(gpu);
	for (uint32_t i = 0; i < used && i < GL_MAX_SLOTS; i++) {
		const struct gl_slot *slot = &gl_self.usage->slot[i];
		uint32_t but = (int)i == gl_self.slot ? gpu->index : GL_MAX_DEVICES;
		if ((gl_load_acquire(&slot->generation) & 1) && slot_is_late(slot, but, now, sharers))
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

static bool is_behind(struct gl_gpu_meter *meter, const struct gl_gpu *gpu, uint64_t now)
{
	if (!gl_gang_has(gpu) || gl_load_relaxed(&gpu->account->outstanding_ns) >= CATCH_UP_AHEAD_NS ||
	    is_late(gpu->account, now, RANK_LATE_NS, gl_sharers(gpu)) || !is_another_late(gpu, now))
		return false;
	if (!gl_load_relaxed(&meter->behind_since_ns))
		gl_store_relaxed(&meter->behind_since_ns, now);
	return now - gl_load_relaxed(&meter->behind_since_ns) < CATCH_UP_NS || is_due(meter, now);
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
	gl_store_relaxed(&m->gpu[gpu->index].behind_since_ns, 0);
}

bool gl_is_sibling_at_work(const struct gl_gpu *gpu)
{
	uint32_t used = gl_load_relaxed(&gl_self.usage->header.slots_used);
	uint32_t devices = gl_load_relaxed(&gl_self.usage->gang.devices);
	if (!gl_gang_has(gpu))
		return false;
	for (uint32_t i = 0; i < used && i < GL_MAX_SLOTS; i++)
		for (uint32_t d = 0; d < GL_MAX_DEVICES && devices >> d; d++)
			if (devices >> d & 1 && gl_load_relaxed(&gl_self.usage->slot[i].account[d].outstanding_ns))
				return true;
	return false;
}

bool gl_has_waited(uint64_t from_ns, uint64_t to_ns, uint64_t cost_ns)
{
	uint64_t released = gl_load_relaxed(&gl_self.usage->gang.released_at_ns);
	return GL_UNLIKELY(released > from_ns) && released <= to_ns && to_ns - released <= ENDED_SOON_NS + 2 * cost_ns;
}
