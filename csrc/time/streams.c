/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of measured streams.  A stream with a handle of its own is found by the handle alone, whichever context is
 * current.  A default stream is found by its context, and a per-thread one by its thread too.
 */
#include "time/types.h"

enum { PROBES = 16 };

static bool matches(const struct gl_stream *s, CUcontext context, CUstream handle, uint64_t thread)
{
	return gl_load_acquire(&s->state) == 2 && gl_load_relaxed(&s->handle) == handle &&
	       gl_load_relaxed(&s->thread) == thread &&
	       (!gl_is_default_stream(handle) || gl_load_relaxed(&s->context) == context);
}

/* Field by field, under the lock: another thread may still be reading the entry's previous use. */
static void begin(struct gl_meter *m, struct gl_stream *s, CUcontext context, CUstream handle, uint64_t thread,
		  struct gl_clock *clock)
{
	uint32_t at = (uint32_t)(s - m->stream);
	gl_lock(&s->lock);
	gl_store_relaxed(&s->context, context);
	gl_store_relaxed(&s->handle, handle);
	gl_store_relaxed(&s->thread, thread);
	s->clock = clock;
	gl_store_relaxed(&s->launches, 0);
	gl_store_relaxed(&s->charged_ns, 0);
	gl_store_relaxed(&s->pending, 0);
	gl_store_relaxed(&s->seen, 0);
	gl_store_relaxed(&s->waited, 0);
	gl_store_relaxed(&s->first_ns, 0);
	gl_store_relaxed(&s->marked_ns, 0);
	gl_store_relaxed(&s->looked_ns, 0);
	s->finished_ns = s->finished_raw_ns = s->finished_after_ns = 0;
	s->left_ns = 0;
	s->left = s->running = 0;
	gl_store_relaxed(&s->unknown.launches, 0);
	s->unknown.cost = NULL;
	s->unknown.charged_ns = 0;
	gl_store_relaxed(&s->tail, s->head);
	gl_unlock(&s->lock);
	gl_store_release(&s->state, 2u);
	__atomic_fetch_or(&m->live[at / 64], UINT64_C(1) << at % 64, __ATOMIC_RELEASE);
}

void gl_stream_free(struct gl_meter *m, struct gl_stream *s)
{
	uint32_t at = (uint32_t)(s - m->stream);
	gl_stream_orphan(s);
	gl_store_relaxed(&s->context, NULL);
	__atomic_fetch_and(&m->live[at / 64], ~(UINT64_C(1) << at % 64), __ATOMIC_RELAXED);
	gl_store_release(&s->state, 0u);
}

struct gl_stream *gl_stream_next(struct gl_meter *m, uint32_t *index)
{
	while (*index < GL_STREAMS) {
		uint64_t word = gl_load_acquire(&m->live[*index / 64]) >> *index % 64;
		if (!word) {
			*index = (*index / 64 + 1) * 64;
			continue;
		}
		*index += (uint32_t)__builtin_ctzll(word);
		struct gl_stream *s = &m->stream[(*index)++];
		if (gl_load_acquire(&s->state) == 2)
			return s;
	}
	return NULL;
}

void gl_stream_settle(struct gl_meter *m, struct gl_stream *s)
{
	if (GL_LIKELY(!gl_load_relaxed(&s->pending)))
		return;
	uint64_t pending = __atomic_exchange_n(&s->pending, 0, __ATOMIC_RELAXED), ns = pending % GL_PENDING_ONE;
	gl_add_relaxed(&s->clock->gpu->account->launches[GL_KERNEL], pending / GL_PENDING_ONE);
	gl_add_relaxed(&s->launches, (uint32_t)(pending / GL_PENDING_ONE));
	gl_add_relaxed(&s->charged_ns, ns);
	gl_spend(m, s->clock->gpu, ns);
}

/* The caller holds m->lock. */
static struct gl_stream *make_stream(struct gl_meter *m, uint64_t hash, CUcontext context, CUstream handle, uint64_t thread)
{
	struct gl_clock *clock = gl_clock_of(m, context);
	for (uint32_t i = 0; clock && i < PROBES; i++) {
		struct gl_stream *s = &m->stream[(hash + i) % GL_STREAMS];
		if (matches(s, context, handle, thread))
			return s;
		if (gl_load_acquire(&s->state) == 0) {
			begin(m, s, context, handle, thread, clock);
			return s;
		}
	}
	return NULL;
}

struct gl_stream *gl_stream_of(struct gl_meter *m, CUcontext context, CUstream handle, bool per_thread, bool make)
{
	uint64_t thread = per_thread ? (uint64_t)gl_syscall(SYS_gettid) : 0;
	uint64_t owner = gl_is_default_stream(handle) ? (uintptr_t)context : 0;
	uint64_t hash = gl_key_mix(gl_key_mix(owner, (uintptr_t)handle), thread);
	for (uint32_t i = 0; i < PROBES; i++) {
		struct gl_stream *s = &m->stream[(hash + i) % GL_STREAMS];
		if (matches(s, context, handle, thread))
			return s;
	}
	if (!make)
		return NULL;
	gl_lock(&m->lock);
	struct gl_stream *s = make_stream(m, hash, context, handle, thread);
	gl_unlock(&m->lock);
	return s;
}

/* If the driver does not answer, its other call is used.  If that fails too, the stream counts as capturing for code
 * that would mark it, and as running for code that charges. */
static bool asks_capturing(CUstream stream, bool per_thread, bool otherwise)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	cuuint64_t id;
	CUresult r = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status) : REAL(cuStreamIsCapturing)(stream, &status);
	if (r != CUDA_SUCCESS)
		r = per_thread ? REAL(cuStreamGetCaptureInfo_v2_ptsz)(stream, &status, &id, NULL, NULL, NULL)
			       : REAL(cuStreamGetCaptureInfo_v2)(stream, &status, &id, NULL, NULL, NULL);
	return r == CUDA_SUCCESS ? status != CU_STREAM_CAPTURE_STATUS_NONE : otherwise;
}

bool gl_captures(CUstream stream, bool per_thread)
{
	return GL_UNLIKELY(gl_load_relaxed(&gl_self.capturing)) && asks_capturing(stream, per_thread, false);
}

bool gl_stream_markable(const struct gl_stream *s, uint64_t *thread)
{
	uint64_t owner = gl_load_relaxed(&s->thread);
	CUstream handle = gl_load_relaxed(&s->handle);
	if (owner && !*thread)
		*thread = (uint64_t)gl_syscall(SYS_gettid);
	if ((owner && owner != *thread) || handle == GL_NO_HANDLE)
		return false;
	bool legacy = !owner && (handle == NULL || handle == CU_STREAM_LEGACY);
	return !__atomic_load_n(&gl_self.capturing, __ATOMIC_SEQ_CST) ||
	       (!legacy && !asks_capturing(handle, owner != 0, true));
}
