/* SPDX-License-Identifier: Apache-2.0
 *
 * Where work ends: the program has waited for the GPU, or a stream or context goes away with what was under way in it.
 */
#include "time/launch.h"
#include "process/limits.h"
#include "time/types.h"

#define FINISH_NS UINT64_C(50000) /* most that measuring finished work may take */

/* events_gone: the marks' events went with their context and must not be touched again. */
static void forget_stream(struct gl_stream *s, bool events_gone)
{
	gl_lock(&s->lock);
	gl_stream_settle(gl_self.meter, s);
	for (; s->tail != s->head; gl_put(&s->tail, s->tail + 1)) {
		struct gl_mark *mark = &s->mark[s->tail % GL_MARKS];
		gl_sub(&s->clock->gpu->account->outstanding_ns, mark->charged_ns);
		if (mark->cost)
			gl_put(&mark->cost->unsampled, 0);
		if (!events_gone)
			gl_clock_give(s->clock, mark->event);
	}
	gl_sub(&s->clock->gpu->account->outstanding_ns, s->charged_ns);
	gl_put(&s->handle, (CUstream)~(uintptr_t)0);
	gl_put(&s->context, NULL);
	gl_put(&s->launches, 0);
	gl_put(&s->charged_ns, 0);
	gl_unlock(&s->lock);
	gl_store(&s->state, 0u);
}

void gl_meter_stream_gone(CUstream stream)
{
	struct gl_meter *m = gl_load(&gl_self.meter);
	CUcontext context;
	if (!m || !stream || REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
		return;
	for (uint32_t i = 0; i < GL_STREAMS; i++)
		if (gl_load(&m->stream[i].state) == 2 && gl_peek(&m->stream[i].handle) == stream)
			forget_stream(&m->stream[i], false);
}

void gl_meter_context_gone(CUcontext context)
{
	struct gl_meter *m = gl_load(&gl_self.meter);
	if (!m || !context)
		return;
	gl_lock(&m->lock);
	for (uint32_t i = 0; i < GL_STREAMS; i++)
		if (gl_load(&m->stream[i].state) == 2 && gl_peek(&m->stream[i].context) == context)
			forget_stream(&m->stream[i], true);
	for (uint32_t i = 0; i < GL_CLOCKS; i++) {
		struct gl_clock *c = &m->clock[i];
		if (!gl_load(&c->ready) || c->context != context)
			continue;
		gl_store(&c->ready, 0u);
		gl_sub(&m->clocks, 1);
		c->spares = 0; /* the events died with the context */
		c->base = NULL;
		c->context = NULL;
	}
	gl_unlock(&m->lock);
	gl_costs_forget();
}

/* The stream has probably run dry: a mark put now is reached at once. */
static void finish(struct gl_meter *m, struct gl_stream *s)
{
	uint64_t start = gl_now_ns();
	if (!gl_try_lock(&s->lock))
		return;
	gl_marks_collect(m, s);
	gl_stream_settle(m, s);
	if (gl_peek(&s->launches) && start - gl_peek(&s->marked_ns) >= gl_bucket_mark_ns(s->clock->gpu) &&
	    gl_mark_put(s, GL_MARK_PLAIN, NULL, 0, 0))
		while (gl_peek(&s->head) != gl_peek(&s->tail) && gl_now_ns() - start < FINISH_NS)
			gl_marks_collect(m, s);
	gl_unlock(&s->lock);
}

static bool has_unfinished(const struct gl_stream *s, CUcontext context)
{
	return gl_load(&s->state) == 2 && gl_peek(&s->context) == context &&
	       (gl_peek(&s->launches) || gl_peek(&s->pending) || gl_peek(&s->head) != gl_peek(&s->tail));
}

static void finish_all(struct gl_meter *m, struct gl_gpu *gpu, CUcontext context)
{
	uint64_t thread = 0;
	struct gl_stream *last = gl_stream_last(m); /* mostly there is only this one */
	if (last && has_unfinished(last, context) && gl_stream_markable(last, &thread))
		finish(m, last);
	for (uint32_t i = 0; i < GL_STREAMS && gl_peek(&gpu->account->outstanding_ns); i++)
		if (has_unfinished(&m->stream[i], context) && gl_stream_markable(&m->stream[i], &thread))
			finish(m, &m->stream[i]);
}

CUresult gl_meter_waited(CUresult result)
{
	struct gl_meter *m = gl_load(&gl_self.meter);
	CUcontext context;
	if (result != CUDA_SUCCESS || !m || !gl_self.daemon.registered || REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
		return result;
	struct gl_gpu *gpu = gl_gpu_current();
	if (!gpu || !gl_peek(&gpu->account->outstanding_ns) || !gl_gpu_shared(gpu))
		return result;
	__atomic_fetch_add(&gl_self.marking, 1, __ATOMIC_SEQ_CST); /* as in mark_all */
	finish_all(m, gpu, context);
	__atomic_fetch_sub(&gl_self.marking, 1, __ATOMIC_SEQ_CST);
	gl_queue_waited(m, gpu);
	return result;
}
