/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of work: the program waits for the GPU, or a stream or context is destroyed with unfinished work in it.
 *
 * The mark is recorded before the program waits, behind the work that it waits for.  So its time is the end of that
 * work. A mark recorded after the wait would give the time at which the program continued.
 */
#include "time/launch.h"
#include "process/limits.h"
#include "time/gate.h"
#include "time/types.h"

#define FINISH_NS UINT64_C(50000) /* longest time for measuring finished work */
#define END_NS UINT64_C(10000000000) /* longest wait for the work of a context that ends; the driver waits anyway */
enum { END_NAP_NS = 50000 };

/* ---- waiting ---- */

/* True if there is enough to measure: as much as between two marks otherwise, or launches of unknown cost. */
static bool is_due(const struct gl_stream *s)
{
	uint64_t every = gl_bucket_mark_ns(s->clock->gpu);
	return gl_load_relaxed(&s->unknown.launches) || gl_load_relaxed(&s->charged_ns) >= every ||
	       gl_now_ns() - gl_load_relaxed(&s->marked_ns) >= every;
}

/* An event in the legacy stream makes other streams wait for each other.  So none is recorded there if the program
 * waits for another stream. */
static bool is_awaited(const struct gl_stream *s, enum gl_wait what, CUcontext context, CUstream stream, bool per_thread)
{
	CUstream handle = gl_load_relaxed(&s->handle);
	if (what == GL_WAIT_CONTEXT)
		return gl_load_relaxed(&s->context) == context;
	if (what == GL_WAIT_EVENT)
		return !gl_is_default_stream(handle) || gl_load_relaxed(&s->thread) ||
		       gl_load_relaxed(&s->context) == context;
	if (!gl_is_default_stream(stream))
		return handle == stream;
	if (per_thread || stream == CU_STREAM_PER_THREAD)
		return gl_load_relaxed(&s->thread) && gl_load_relaxed(&s->context) == context;
	return gl_load_relaxed(&s->context) == context;
}

/* The stream in which an event was recorded is not known.  Mostly it is the one used last. */
static void mark_last(struct gl_meter *m, CUcontext context)
{
	struct gl_stream *s = gl_stream_last(m);
	uint64_t thread = 0;
	if (s && gl_load_acquire(&s->state) == 2 && gl_has_launches(s) &&
	    is_awaited(s, GL_WAIT_EVENT, context, NULL, false) && is_due(s) &&
	    gl_stream_markable(s, &thread))
		gl_mark_now(m, s);
}

void gl_meter_waits(enum gl_wait what, CUcontext context, CUstream stream, bool per_thread)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	struct gl_stream *s;
	uint64_t thread = 0;
	if (!m || (!context && REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS))
		return;
	__atomic_fetch_add(&gl_self.marking, 1, __ATOMIC_SEQ_CST); /* as in mark_all */
	if (what == GL_WAIT_EVENT)
		mark_last(m, context);
	for (uint32_t i = 0; what != GL_WAIT_EVENT && (s = gl_stream_next(m, &i));)
		if (gl_has_launches(s) && is_awaited(s, what, context, stream, per_thread) && is_due(s) &&
		    gl_stream_markable(s, &thread))
			gl_mark_now(m, s);
	__atomic_fetch_sub(&gl_self.marking, 1, __ATOMIC_SEQ_CST);
}

/* The stream is probably empty, so a mark recorded now is reached at once. */
static void finish(struct gl_meter *m, struct gl_stream *s)
{
	uint64_t start = gl_now_ns();
	if (!gl_try_lock(&s->lock))
		return;
	gl_marks_collect(m, s);
	gl_stream_settle(m, s);
	if (gl_load_relaxed(&s->launches) && start - gl_load_relaxed(&s->marked_ns) >= gl_bucket_mark_ns(s->clock->gpu))
		(void)gl_mark_put(s, GL_MARK_PLAIN, NULL, 0, 0);
	while (gl_has_marks(s) && !gl_load_relaxed(&s->clock->coarse) && gl_now_ns() - start < FINISH_NS)
		gl_marks_collect(m, s);
	gl_unlock(&s->lock);
}

static bool has_unfinished(const struct gl_stream *s)
{
	return gl_has_launches(s) || gl_has_marks(s);
}

/* Default streams of other contexts are not marked. */
static void finish_all(struct gl_meter *m, const struct gl_gpu *gpu, CUcontext context)
{
	uint64_t thread = 0;
	struct gl_stream *s;
	for (uint32_t i = 0; gl_load_relaxed(&gpu->account->outstanding_ns) && (s = gl_stream_next(m, &i));)
		if (s->clock->gpu == gpu && has_unfinished(s) && gl_stream_markable(s, &thread) &&
		    (!gl_is_default_stream(gl_load_relaxed(&s->handle)) || gl_load_relaxed(&s->context) == context))
			finish(m, s);
}

/* Other tenants wait for this process to finish: its finished work must not count as outstanding. */
static void tell_others(struct gl_meter *m)
{
	CUcontext context;
	if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
		return;
	__atomic_fetch_add(&gl_self.marking, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < gl_self.gpu_count; i++) {
		struct gl_gpu *gpu = &gl_self.gpu[i];
		if (!gl_load_relaxed(&gpu->account->outstanding_ns) || !gl_gpu_shared(gpu))
			continue;
		finish_all(m, gpu, context);
		gl_queue_waited(m, gpu);
	}
	__atomic_fetch_sub(&gl_self.marking, 1, __ATOMIC_SEQ_CST);
}

CUresult gl_meter_waited(CUresult result)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	if (result != CUDA_SUCCESS || !m)
		return result;
	gl_marks_collect_all(m, NULL);
	if (gl_self.daemon.registered)
		tell_others(m);
	return result;
}

/* ---- streams ---- */

/* The stream's work and its marks continue without the handle. */
static void leave(struct gl_meter *m, struct gl_stream *s)
{
	gl_lock(&s->lock);
	gl_marks_collect(m, s);
	gl_stream_settle(m, s);
	if (gl_load_relaxed(&s->launches) && !gl_mark_put(s, GL_MARK_PLAIN, NULL, 0, 0)) {
		uint64_t now = gl_now_ns(), since = gl_remains_since(s);
		gl_remains_gather(s, false);
		gl_store_relaxed(&s->launches, 0);
		gl_remains_end(m, s, 0, now > since ? now - since : 0, now);
	}
	gl_stream_orphan(s);
	if (!gl_has_marks(s))
		gl_stream_free(m, s);
	gl_unlock(&s->lock);
}

void gl_meter_stream_gone(CUstream stream)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	struct gl_stream *s;
	if (!m || gl_is_default_stream(stream))
		return;
	for (uint32_t i = 0; (s = gl_stream_next(m, &i));)
		if (gl_load_relaxed(&s->handle) == stream)
			leave(m, s);
	gl_marks_collect_all(m, NULL);
}

/* ---- contexts ---- */

/* Waits so that marks give the work's time.  The end of the driver's call would include the time for ending the
 * context. */
static void finish_before_end(struct gl_meter *m, struct gl_stream *s, uint64_t deadline_ns)
{
	struct timespec nap = {0, END_NAP_NS};
	uint64_t thread = 0;
	if (gl_has_launches(s) && gl_stream_markable(s, &thread))
		gl_mark_now(m, s);
	gl_lock(&s->lock);
	gl_marks_collect(m, s);
	while ((gl_has_marks(s) || (gl_load_relaxed(&s->clock->coarse) && gl_load_relaxed(&s->launches))) &&
	       gl_now_ns() < deadline_ns) {
		(void)gl_syscall(SYS_nanosleep, &nap, NULL);
		gl_marks_collect(m, s);
	}
	s->left_ns = gl_has_marks(s) ? gl_now_ns() : 0;
	gl_store_relaxed(&s->left, 1u);
	gl_unlock(&s->lock);
}

void gl_meter_context_going(CUcontext context)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	struct gl_stream *s;
	uint64_t deadline = gl_now_ns() + END_NS;
	for (uint32_t i = 0; m && context && (s = gl_stream_next(m, &i));)
		if (gl_load_relaxed(&s->context) == context)
			finish_before_end(m, s, deadline);
}

void gl_meter_context_stays(CUcontext context)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	struct gl_stream *s;
	for (uint32_t i = 0; m && (s = gl_stream_next(m, &i));)
		if (gl_load_relaxed(&s->context) == context)
			gl_store_relaxed(&s->left, 0);
}

/* Work that was unfinished when its context began to end ran until then at least, and until the context had ended at
 * most. */
static void end_stream(struct gl_meter *m, struct gl_stream *s)
{
	gl_lock(&s->lock);
	uint64_t now = gl_now_ns(), since = gl_remains_since(s);
	gl_remains_gather(s, true);
	if (gl_load_relaxed(&s->launches))
		gl_remains_end(m, s, s->left_ns > since ? s->left_ns - since : 0, now > since ? now - since : 0, now);
	gl_store_relaxed(&s->launches, 0);
	gl_stream_free(m, s);
	gl_unlock(&s->lock);
}

void gl_meter_context_gone(CUcontext context)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	struct gl_stream *s;
	if (!m || !context)
		return;
	gl_lock(&m->lock);
	for (uint32_t i = 0; (s = gl_stream_next(m, &i));)
		if (gl_load_relaxed(&s->context) == context)
			end_stream(m, s);
	for (uint32_t i = 0; i < GL_CLOCKS; i++) {
		struct gl_clock *c = &m->clock[i];
		if (!gl_load_acquire(&c->ready) || c->context != context)
			continue;
		gl_store_release(&c->ready, 0u);
		gl_sub_relaxed(&m->clocks, 1);
		c->spares = 0; /* the events ended with the context */
		c->base = NULL;
		c->context = NULL;
	}
	gl_unlock(&m->lock);
	gl_costs_forget();
}
