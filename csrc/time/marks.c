/* SPDX-License-Identifier: Apache-2.0
 *
 * Marks: the measured GPU time.  An interval is the launches between two marks of a stream.  Let T be when the GPU
 * reached its mark, P when it reached the mark before, F when the host made the interval's first launch and H when it
 * recorded the mark (all on the host's clock).  Then the GPU worked for
 *
 *     at most   T - max(P, F)    nothing of the interval existed before
 *     at least  T - max(P, H)    from H on all of it was queued, so the stream never ran dry until T
 *
 * With a backlog (P after H) both are T - P and the measurement is exact, whatever the costs.  If the host is slower
 * than the GPU, the bounds are far apart.  Then the sum of the learned costs, limited to the bounds, is charged, so
 * gaps are not.  A stream that waited for another stream's event may have been idle, so only the upper bound holds.
 * The same if other tenants' work may have been on the GPU in between, which the lower bound would charge to this
 * tenant.  The daemon publishes since when there was none.
 */
#include "time/gate.h"
#include "time/types.h"

#define BESIDE_NS INT64_C(8000000)    /* a few time slices */
#define OVERLAP_NS UINT64_C(20000000) /* of launches, between looks at how much they overlap */

/* The sum of costs from which a sum of charges was made.  Not exact if the overlap has changed meanwhile, but it
 * changes slowly. */
static uint64_t costs_of(const struct gl_gpu_meter *gpu, uint64_t charged_ns)
{
	uint32_t overlap = gl_load_relaxed(&gpu->overlap);
	return overlap ? charged_ns * 1024 / overlap : charged_ns;
}

/* Moves the launches since the last mark to the new mark. */
static void take_launches(struct gl_mark *m, struct gl_stream *stream)
{
	gl_stream_settle(gl_self.meter, stream);
	m->launches += __atomic_exchange_n(&stream->launches, 0, __ATOMIC_ACQ_REL);
	uint64_t charged = __atomic_exchange_n(&stream->charged_ns, 0, __ATOMIC_ACQ_REL);
	m->charged_ns += charged;
	m->cost_ns += costs_of(&gl_self.meter->gpu[stream->clock->gpu->index], charged);
	m->waited |= __atomic_exchange_n(&stream->waited, 0, __ATOMIC_ACQ_REL);
	gl_unknown_add(&m->unknown, &stream->unknown);
	gl_unknown_clear(&stream->unknown);
}

static bool record(struct gl_stream *stream, struct gl_mark *m)
{
	uint64_t before = gl_now_ns();
	CUresult r = gl_record(stream, m->event);
	if (r != CUDA_SUCCESS) {
		gl_clock_degrade(stream->clock, "cuEventRecord", r);
		return false;
	}
	m->before_ns = before;
	m->after_ns = gl_now_ns();
	gl_clock_recorded(stream->clock, m->after_ns - before);
	take_launches(m, stream);
	gl_store_relaxed(&stream->marked_ns, m->after_ns);
	gl_store_relaxed(&stream->clock->gpu->account->marked_ns, m->after_ns);
	return true;
}

/* Records the last mark again, behind the launches made since: an event keeps only its last place. */
static bool move_last(struct gl_stream *stream)
{
	struct gl_mark *m = &stream->mark[(stream->head - 1) % GL_MARKS];
	if (!record(stream, m))
		return false;
	if (m->cost)
		gl_store_relaxed(&m->cost->unsampled, 0);
	m->kind = GL_MARK_PLAIN;
	m->cost = NULL;
	return true;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The expected time of the stream's next mark.  Siblings read it to find out whether this process waits for them. */
static void note_due(struct gl_stream *stream)
{
	const struct gl_mark *m = &stream->mark[stream->tail % GL_MARKS];
	uint32_t due_us = 0;
	if (stream->tail != stream->head)
		due_us = (uint32_t)((later(m->first_ns, stream->finished_ns) + m->charged_ns) / 1000) | 1;
	gl_store_relaxed(&stream->clock->gpu->account->due_us, due_us);
}

bool gl_mark_put(struct gl_stream *stream, enum gl_mark_kind kind, struct gl_cost *cost, uint64_t launched_ns,
		 uint64_t launch_took_ns)
{
	if (gl_load_relaxed(&stream->clock->coarse))
		return false;
	if (stream->head - stream->tail >= GL_MARKS)
		return kind == GL_MARK_PLAIN && move_last(stream);
	struct gl_mark *m = &stream->mark[stream->head % GL_MARKS];
	*m = (struct gl_mark){.event = gl_clock_event(stream->clock), .kind = kind, .cost = cost, .launched_ns = launched_ns,
			      .launch_took_ns = launch_took_ns, .first_ns = gl_load_relaxed(&stream->first_ns)};
	if (!m->event)
		return false;
	if (!record(stream, m)) {
		gl_clock_give(stream->clock, m->event);
		return false;
	}
	gl_store_relaxed(&stream->head, stream->head + 1);
	note_due(stream);
	return true;
}

static uint64_t after(uint64_t t, uint64_t start)
{
	return t > start ? t - start : 0;
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Learns a launch's cost from the interval between its two marks, of which the kernel is only a part.  `pair` is the
 * time between two events recorded back to back.  Measured against the profiler with kernels of 1 to 52 us
 * (bench/event_timing.py), on two cards whose hosts differ; what is used lies between:
 *
 *     stream never empty             between the marks: the kernel and 1.60 or 1.74 pairs
 *     empty when the first mark came between the marks: the launch call, the kernel and 1.15 or 0.93 pairs
 *     emptied in between             from the end of the launch call to the second mark: the kernel and 1 pair
 *
 * If the second mark was reached as soon as the GPU received it, the kernel had ended before.  Then the result is only
 * an upper bound: *at_most. */
static bool sample(const struct gl_stream *stream, const struct gl_mark *m, uint64_t raw, uint64_t t, uint64_t *ns,
		   bool *at_most)
{
	uint64_t pair = stream->clock->pair_ns, first = stream->finished_ns, start = m->launched_ns - m->launch_took_ns;
	if (m->launches != 1 || m->waited || after(m->after_ns, m->launched_ns) > 10000 || m->launch_took_ns > 100000)
		return false; /* another thread's launch in between, or the host was held up */
	uint64_t between = after(raw, stream->finished_raw_ns), queued = after(between, pair * 5 / 3);
	uint64_t alone = after(after(t, m->launched_ns), pair);
	*at_most = first < m->after_ns && between < after(m->after_ns, stream->finished_after_ns) + pair / 4;
	if (first < start + 1500)
		*ns = after(between, m->launch_took_ns + pair * 26 / 25);
	else if (first > m->launched_ns)
		*ns = queued;
	else
		*ns = queued < alone ? queued : alone;
	return true;
}

static void reach(struct gl_meter *m, const struct gl_gpu *gpu, uint64_t t)
{
	uint64_t until = gl_load_relaxed(&gpu->device->busy_until_ns);
	while (t > until && !__atomic_compare_exchange_n(&gpu->device->busy_until_ns, &until, t, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	if (t > gl_load_relaxed(&m->gpu[gpu->index].own_until_ns))
		gl_store_relaxed(&m->gpu[gpu->index].own_until_ns, t);
	gl_queue_reached(gpu, t);
}

/* Streams that overlap take less time together than the sum of their costs.  Charging the sum at submission and
 * correcting it at the mark would give the right total too, but it would end every burst early and so reduce the
 * overlap. */
static void follow_overlap(struct gl_meter *m, uint32_t gpu, uint64_t busy, uint64_t costs)
{
	uint64_t all_busy = gl_add_relaxed(&m->gpu[gpu].busy_sum_ns, busy) + busy;
	uint64_t all_costs = gl_add_relaxed(&m->gpu[gpu].cost_sum_ns, costs) + costs;
	if (all_costs < OVERLAP_NS)
		return;
	uint64_t ratio = all_busy * 1024 / all_costs;
	gl_store_relaxed(&m->gpu[gpu].overlap, (uint32_t)(ratio < 64 ? 64 : ratio > 2048 ? 2048 : ratio));
	gl_store_relaxed(&m->gpu[gpu].busy_sum_ns, all_busy / 2); /* the older half counts half */
	gl_store_relaxed(&m->gpu[gpu].cost_sum_ns, all_costs / 2);
}

/* Contexts with work get equal slices of a GPU.  So a process whose queue never ran empty beside other processes has
 * had its share of the time, whatever its launches' learned costs are.  The real costs may have risen meanwhile, and
 * samples beside other processes are unreliable.  Slices last some ms, so only the sum over intervals counts.  Returns
 * the GPU time to charge in addition. */
static uint64_t owed_beside(struct gl_meter *m, const struct gl_gpu *gpu, uint64_t least, uint64_t busy)
{
	const struct gl_policy_device *p = gl_policy_of(gpu);
	uint32_t sharers = p ? gl_load_relaxed(&p->sharers) : 0;
	if (!sharers)
		return 0;
	int64_t *owed = &m->gpu[gpu->index].beside_owed_ns;
	int64_t sum = gl_load_relaxed(owed) + (int64_t)(least / sharers) - (int64_t)busy;
	gl_store_relaxed(owed, sum < -BESIDE_NS ? -BESIDE_NS : sum > BESIDE_NS ? BESIDE_NS : sum);
	return sum > BESIDE_NS ? (uint64_t)(sum - BESIDE_NS) : 0;
}

/* Length of the interval, and the part that certainly belongs to this process.  If no other tenant was on the GPU, all
 * of it belongs to the tenant, but other processes of the tenant may have used a part. */
struct taken {
	uint64_t busy_ns, own_ns;
	uint64_t forgiven_ns; /* time that work waited for held launches, not in busy_ns */
	uint64_t least_ns; /* time for which the queue certainly did not run empty */
	bool beside;       /* other work may have been on the GPU meanwhile */
};

/* The sum of costs, with the costs that have become known since.  If a cost is still unknown, the
 * whole interval counts. */
static uint64_t known_costs(const struct gl_meter *m, const struct gl_gpu *gpu, uint64_t costs_ns,
			    const struct gl_unknown *unknown, uint64_t span_ns)
{
	if (GL_LIKELY(!unknown->launches))
		return costs_ns;
	if (!unknown->cost || !gl_load_relaxed(&unknown->cost->samples))
		return span_ns;
	return after(costs_ns, costs_of(&m->gpu[gpu->index], unknown->charged_ns)) +
	       unknown->launches * gl_load_relaxed(&unknown->cost->cost_ns);
}

static struct taken taken(struct gl_meter *m, struct gl_stream *stream, const struct gl_mark *mark, uint64_t raw, uint64_t t,
			  uint64_t since)
{
	const struct gl_gpu *gpu = stream->clock->gpu;
	uint64_t span = after(t, since), least = after(t, later(stream->finished_ns, mark->before_ns)), measured;
	bool at_most, alone = !gl_beside_siblings(m, gpu, since), ours = gl_exclusive(gpu, since), lonely = ours && alone;
	uint64_t costs = known_costs(m, gpu, mark->cost_ns, &mark->unknown, span);
	struct taken took = {costs, costs, 0, least, !ours && !mark->waited};
	if (gl_has_waited(gpu, since, t, mark->charged_ns, alone)) {
		if (mark->cost)
			gl_store_relaxed(&mark->cost->unsampled, 0);
		took.busy_ns = took.own_ns = mark->charged_ns; /* average cost of such launches */
		took.forgiven_ns = after(span, mark->charged_ns);
	} else if (mark->kind == GL_MARK_AFTER && sample(stream, mark, raw, t, &measured, &at_most)) {
		took.own_ns = !lonely ? gl_cost_learn_unsure(mark->cost, measured)
			      : at_most ? gl_cost_learn_most(mark->cost, measured)
					: gl_cost_learn(mark->cost, measured);
		took.busy_ns = ours && !lonely && !at_most ? measured : took.own_ns;
	} else if (ours && !mark->waited && took.busy_ns < least) {
		took.busy_ns = least;
		took.own_ns = lonely ? least : took.own_ns;
	}
	took.busy_ns = lesser(took.busy_ns, span);
	took.own_ns = lesser(took.own_ns, span);
	return took;
}

static void account(struct gl_meter *m, struct gl_stream *stream, const struct gl_mark *mark, uint64_t raw, uint64_t t)
{
	struct gl_gpu *gpu = stream->clock->gpu;
	uint64_t since = later(stream->finished_ns, mark->first_ns), now = gl_load_relaxed(&stream->looked_ns);
	if (mark->launches == 0)
		return;
	struct taken took = taken(m, stream, mark, raw, t, since);
	took.own_ns = gl_cover_take(&m->cover[gpu->index], since, t, took.own_ns, now);
	took.busy_ns = gl_cover_take(&gl_self.usage->cover[gpu->index], since, t, took.busy_ns, now);
	uint64_t owed = took.beside ? owed_beside(m, gpu, took.least_ns, took.busy_ns) : 0;
	gl_spend_correct(m, gpu, mark->charged_ns, took.busy_ns + owed);
	gl_gang_spend(gpu, since, t, took.busy_ns, now);
	if (GL_UNLIKELY(took.forgiven_ns))
		gl_add_relaxed(&gl_self.usage->gang.forgiven_ns, took.forgiven_ns);
	reach(m, gpu, t);
	if (!mark->unknown.launches && !took.forgiven_ns &&
	    (mark->kind != GL_MARK_AFTER || gl_load_relaxed(&mark->cost->samples) > 4))
		follow_overlap(m, gpu->index, took.own_ns + owed, mark->cost_ns);
}

void gl_marks_collect(struct gl_meter *m, struct gl_stream *stream)
{
	if (gl_load_relaxed(&stream->left))
		return;
	CUstreamCaptureMode before = gl_capture_relax(); /* always: another thread may begin a capture at any time */
	while (stream->tail != stream->head && !gl_load_relaxed(&stream->clock->coarse)) {
		struct gl_mark *mark = &stream->mark[stream->tail % GL_MARKS];
		uint64_t raw, host;
		bool keep;
		CUresult r = REAL(cuEventQuery)(mark->event);
		if (r == CUDA_ERROR_NOT_READY)
			break;
		gl_store_relaxed(&stream->looked_ns, gl_now_ns());
		if (r != CUDA_SUCCESS ||
		    !gl_clock_read(stream->clock, mark->event, mark->before_ns, stream->looked_ns, &raw, &host, &keep)) {
			gl_clock_degrade(stream->clock, "reading an event", r);
			break;
		}
		account(m, stream, mark, raw, host);
		stream->finished_ns = host;
		stream->finished_raw_ns = raw;
		stream->finished_after_ns = mark->after_ns;
		gl_store_relaxed(&stream->tail, stream->tail + 1);
		if (!keep)
			gl_clock_give(stream->clock, mark->event);
	}
	note_due(stream);
	if (GL_UNLIKELY(gl_load_relaxed(&stream->clock->coarse))) {
		gl_remains_gather(stream, false);
		gl_coarse_look(m, stream);
	}
	gl_capture_restore(before);
	if (GL_UNLIKELY(gl_stream_is_orphan(stream)) && !gl_has_marks(stream))
		gl_stream_free(m, stream);
}

void gl_mark_now(struct gl_meter *m, struct gl_stream *stream)
{
	if (!gl_try_lock(&stream->lock))
		return;
	gl_marks_collect(m, stream);
	gl_stream_settle(m, stream);
	if (gl_load_relaxed(&stream->launches) && !gl_load_relaxed(&stream->left))
		gl_mark_put(stream, GL_MARK_PLAIN, NULL, 0, 0);
	gl_unlock(&stream->lock);
}

void gl_marks_collect_all(struct gl_meter *m, CUcontext context)
{
	struct gl_stream *s;
	for (uint32_t i = 0; (s = gl_stream_next(m, &i));) {
		bool pending = gl_has_marks(s) || (gl_load_relaxed(&s->clock->coarse) && gl_has_launches(s));
		if (!pending || (context && gl_load_relaxed(&s->context) != context) || !gl_try_lock(&s->lock))
			continue;
		gl_marks_collect(m, s);
		gl_unlock(&s->lock);
	}
}
