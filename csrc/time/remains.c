/* SPDX-License-Identifier: Apache-2.0
 *
 * Work whose end no mark reports: its context ends, the process exits, or the driver has no events.  It is charged by
 * its known costs, within the minimum and maximum of time that it can have taken.
 */
#include "time/types.h"

/* Launches of several unknown costs are all counted as the most frequent kind. */
void gl_unknown_add(struct gl_unknown *to, const struct gl_unknown *more)
{
	uint32_t before = gl_load_relaxed(&to->launches);
	if (more->cost != to->cost && gl_load_relaxed(&more->launches) > before)
		to->cost = more->cost;
	to->charged_ns += more->charged_ns;
	gl_store_relaxed(&to->launches, before + gl_load_relaxed(&more->launches));
}

void gl_unknown_clear(struct gl_unknown *unknown)
{
	unknown->cost = NULL;
	unknown->charged_ns = 0;
	gl_store_relaxed(&unknown->launches, 0);
}

static void end_mark(struct gl_stream *s, struct gl_mark *mark, bool events_gone)
{
	gl_add_relaxed(&s->launches, mark->launches);
	gl_add_relaxed(&s->charged_ns, mark->charged_ns);
	gl_unknown_add(&s->unknown, &mark->unknown);
	if (mark->waited)
		gl_store_relaxed(&s->waited, 1u);
	if (mark->cost)
		gl_store_relaxed(&mark->cost->unsampled, 0);
	if (!events_gone)
		gl_clock_give(s->clock, mark->event);
}

void gl_remains_gather(struct gl_stream *s, bool events_gone)
{
	gl_stream_settle(gl_self.meter, s);
	if (s->tail != s->head)
		gl_store_relaxed(&s->first_ns, s->mark[s->tail % GL_MARKS].first_ns);
	for (; s->tail != s->head; gl_store_relaxed(&s->tail, s->tail + 1))
		end_mark(s, &s->mark[s->tail % GL_MARKS], events_gone);
}

uint64_t gl_remains_since(const struct gl_stream *s)
{
	const struct gl_mark *mark = s->tail == s->head ? NULL : &s->mark[s->tail % GL_MARKS];
	uint64_t first = mark ? mark->first_ns : gl_load_relaxed(&s->first_ns);
	return first > s->finished_ns ? first : s->finished_ns;
}

/* Replaces the provisional charges in *ns by the costs that are known now.  False: they are still unknown. */
static bool thought(const struct gl_unknown *unknown, uint64_t *ns)
{
	if (!unknown->launches)
		return true;
	if (!unknown->cost || !gl_load_relaxed(&unknown->cost->samples))
		return false;
	*ns -= unknown->charged_ns < *ns ? unknown->charged_ns : *ns;
	*ns += unknown->launches * gl_load_relaxed(&unknown->cost->cost_ns);
	return true;
}

static uint64_t cover(struct gl_meter *m, const struct gl_gpu *gpu, uint64_t from_ns, uint64_t to_ns, uint64_t ns)
{
	(void)gl_cover_take(&m->cover[gpu->index], from_ns, to_ns, ns, to_ns);
	return gl_cover_take(&gl_self.usage->cover[gpu->index], from_ns, to_ns, ns, to_ns);
}

void gl_remains_end(struct gl_meter *m, struct gl_stream *s, uint64_t least_ns, uint64_t most_ns, uint64_t now_ns)
{
	struct gl_gpu *gpu = s->clock->gpu;
	uint64_t since = gl_remains_since(s), charged = __atomic_exchange_n(&s->charged_ns, 0, __ATOMIC_ACQ_REL), took = charged;
	if (!thought(&s->unknown, &took))
		took = most_ns;
	took = took < least_ns ? least_ns : took > most_ns ? most_ns : took;
	gl_unknown_clear(&s->unknown);
	s->finished_ns = now_ns;
	gl_store_relaxed(&s->marked_ns, now_ns);
	gl_spend_correct(m, gpu, charged, cover(m, gpu, since, now_ns, took));
}

void gl_remains_advance(struct gl_meter *m, struct gl_stream *s, uint64_t worked_ns, uint64_t now_ns)
{
	struct gl_gpu *gpu = s->clock->gpu;
	uint64_t since = gl_remains_since(s), charged = gl_load_relaxed(&s->charged_ns);
	uint64_t part = charged < worked_ns ? charged : worked_ns;
	gl_sub_relaxed(&s->charged_ns, part);
	s->finished_ns = now_ns;
	gl_spend_correct(m, gpu, part, cover(m, gpu, since, now_ns, worked_ns));
}
