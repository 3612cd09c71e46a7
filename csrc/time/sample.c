/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures single launches.
 */
#include "time/launch.h"
#include "time/gate.h"
#include "time/types.h"

#define FREE_SAMPLE_NS UINT64_C(4000000) /* between samples, as between marks, where launches are not held back */
enum { KNOWN = 4 };

/* While no launch is held back, only statistics use costs.  So samples of known launches are also rare in time. */
static bool is_too_soon(struct gl_meter *m, const struct gl_launch *l)
{
	if (gl_bucket_mark_ns(l->gpu) < FREE_SAMPLE_NS || gl_load_relaxed(&l->cost->samples) < KNOWN)
		return false;
	uint64_t now = gl_now_ns(), *at = &m->gpu[l->gpu->index].sampled_at_ns;
	if (now - gl_load_relaxed(at) < FREE_SAMPLE_NS)
		return true;
	gl_store_relaxed(at, now);
	return false;
}

/* Without events: the launch begins on an idle stream, and the thread waits for its end. */
static void start_coarse_sample(struct gl_meter *m, struct gl_launch *l)
{
	uint64_t thread = 0;
	if (gl_load_relaxed(&gl_self.capturing) || gl_bucket_free(m, l->gpu) || !gl_stream_markable(l->stream, &thread))
		return;
	gl_lock(&l->stream->lock);
	if (gl_coarse_drain(m, l->stream)) {
		l->sampling = true;
		l->before_ns = gl_now_ns();
	} else {
		gl_unlock(&l->stream->lock);
	}
}

void gl_sample_begin(struct gl_meter *m, struct gl_launch *l)
{
	struct gl_stream *s = l->stream;
	if (GL_UNLIKELY(gl_load_relaxed(&s->clock->coarse)))
		gl_clock_retry(m, s->clock);
	if (!gl_cost_wants_sample(l->cost) || is_too_soon(m, l))
		return;
	if (GL_UNLIKELY(gl_load_relaxed(&s->clock->coarse))) {
		start_coarse_sample(m, l);
		return;
	}
	if (!gl_try_lock(&s->lock))
		return;
	gl_marks_collect(m, s);
	if (s->head - s->tail + 2 + GL_FINAL_MARKS <= GL_MARKS && gl_mark_put(s, GL_MARK_BEFORE, NULL, 0, 0)) {
		l->sampling = true;
		l->before_ns = gl_now_ns();
	} else {
		gl_unlock(&s->lock);
	}
}

void gl_sample_end(struct gl_meter *m, const struct gl_launch *l)
{
	struct gl_stream *s = l->stream;
	uint64_t now = gl_now_ns();
	if (!gl_load_relaxed(&s->clock->coarse))
		gl_mark_put(s, GL_MARK_AFTER, l->cost, now, now - l->before_ns);
	else if (gl_coarse_drain(m, s))
		(void)gl_cost_learn(l->cost, gl_now_ns() - l->before_ns);
	gl_unlock(&s->lock);
}

void gl_sample_apart_begin(struct gl_meter *m, struct gl_launch *l)
{
	if (gl_load_relaxed(&gl_self.capturing) || gl_bucket_free(m, l->gpu) || !gl_cost_wants_sample(l->cost))
		return;
	l->apart = true;
	l->before_ns = gl_now_ns();
}

void gl_sample_apart_end(struct gl_meter *m, const struct gl_launch *l)
{
	struct gl_clock clock = {.context = l->context, .gpu = l->gpu, .coarse = 1};
	struct gl_stream alone = {.context = l->context, .handle = l->handle, .clock = &clock, .launches = 1,
				  .charged_ns = l->charged_ns, .first_ns = l->before_ns,
				  .unknown = {l->cost, l->charged_ns, l->unknown}};
	alone.thread = l->per_thread ? (uint64_t)gl_syscall(SYS_gettid) : 0;
	if (gl_coarse_drain(m, &alone))
		(void)gl_cost_learn(l->cost, gl_now_ns() - l->before_ns);
	else
		gl_sub_relaxed(&l->gpu->account->outstanding_ns, alone.charged_ns);
}
