/* SPDX-License-Identifier: Apache-2.0 */
#include "node/turn_watch.h"

#include "base/sys.h"
#include "node/sigbus_guard.h"

/* The counters of one device. */
struct seen {
	struct gl_turn_watch *watch;
	uint64_t spent_ns, outstanding_ns, queue_end_ns;
	bool waiting;
};

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t beyond(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static int read_books(void *argument)
{
	struct seen *s = argument;
	const struct gl_usage *usage = s->watch->usage;
	uint32_t device = s->watch->device, used = gl_load_relaxed(&usage->header.slots_used);
	s->spent_ns = gl_load_relaxed(&usage->device[device].spent_ns);
	for (uint32_t i = 0; i < used && i < GL_MAX_SLOTS; i++) {
		const struct gl_slot *slot = &usage->slot[i];
		if (!(gl_load_relaxed(&slot->generation) & 1))
			continue;
		s->outstanding_ns += gl_load_relaxed(&slot->account[device].outstanding_ns);
		s->queue_end_ns = most(s->queue_end_ns, gl_load_relaxed(&slot->account[device].queue_end_ns));
		s->waiting |= gl_load_relaxed(&slot->account[device].waiting) != 0;
	}
	return 0;
}

static bool goes_on(struct gl_turn_watch *w, const struct seen *s, uint64_t now)
{
	if (s->spent_ns < w->spent_ns)
		return false; /* the segment was reset */
	uint64_t spent = s->spent_ns - w->spent_ns;
	if (spent)
		w->queue_end_ns = most(w->queue_end_ns, w->begin_ns) + least(spent, GL_MAX_USAGE_STEP_NS);
	w->spent_ns = s->spent_ns;
	uint64_t queued = least(s->outstanding_ns, beyond(most(w->queue_end_ns, s->queue_end_ns), now));
	bool used_up = s->spent_ns >= w->until_spent_ns;
	if (used_up && !w->used_up_ns) {
		w->used_up_ns = now;
		w->left_ns = queued;
	}
	bool idle = !s->waiting && !spent && !queued;
	if (idle || (used_up && queued <= w->queued_ns))
		return false;
	uint64_t left = least(beyond(w->until_spent_ns, s->spent_ns), GL_MAX_USAGE_STEP_NS);
	uint64_t wait = left + beyond(queued, w->queued_ns);
	if (!s->waiting)
		wait = least(wait, least(queued, GL_MAX_USAGE_STEP_NS) + GL_TURN_IDLE_TIMEOUT_NS);
	w->next_ns = now + least(most(wait, GL_WATCH_MIN_POLL_NS), GL_WATCH_MAX_POLL_NS);
	return true;
}

void gl_turn_watch_poll(struct gl_turn_watch *w, uint64_t now)
{
	struct seen s = {w, 0, 0, 0, false};
	if (w->usage && !w->expired && now >= w->next_ns)
		w->expired = gl_guarded(read_books, &s) < 0 || !goes_on(w, &s, now);
}
