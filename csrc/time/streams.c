/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of measured streams.
 */
#include "time/types.h"

static bool matches(const struct gl_stream *s, CUcontext context, CUstream handle, uint64_t thread)
{
	return gl_peek(&s->context) == context && gl_peek(&s->handle) == handle && gl_peek(&s->thread) == thread;
}

/* Field by field, under the lock: another thread may still be looking at what the entry was before. */
static void begin(struct gl_stream *s, CUcontext context, CUstream handle, uint64_t thread, struct gl_clock *clock)
{
	gl_lock(&s->lock);
	gl_put(&s->context, context);
	gl_put(&s->handle, handle);
	gl_put(&s->thread, thread);
	s->clock = clock;
	gl_put(&s->launches, 0);
	gl_put(&s->charged_ns, 0);
	gl_put(&s->pending, 0);
	gl_put(&s->seen, 0);
	gl_put(&s->waited, 0);
	gl_put(&s->first_ns, 0);
	gl_put(&s->marked_ns, 0);
	gl_put(&s->looked_ns, 0);
	s->finished_ns = s->finished_raw_ns = s->finished_after_ns = 0;
	gl_put(&s->tail, s->head);
	gl_unlock(&s->lock);
	gl_store(&s->state, 2u);
}

void gl_stream_settle(struct gl_meter *m, struct gl_stream *s)
{
	if (GL_LIKELY(!gl_peek(&s->pending)))
		return;
	uint64_t pending = __atomic_exchange_n(&s->pending, 0, __ATOMIC_RELAXED), ns = pending % GL_PENDING_ONE;
	gl_add(&s->clock->gpu->account->launches[GL_KERNEL], pending / GL_PENDING_ONE);
	gl_add(&s->launches, (uint32_t)(pending / GL_PENDING_ONE));
	gl_add(&s->charged_ns, ns);
	gl_spend(m, s->clock->gpu, ns);
}

struct gl_stream *gl_stream_of(struct gl_meter *m, CUcontext context, CUstream handle, bool per_thread, bool make)
{
	uint64_t thread = per_thread ? (uint64_t)gl_syscall(SYS_gettid) : 0;
	uint64_t hash = gl_key_mix(gl_key_mix((uintptr_t)context, (uintptr_t)handle), thread);
	for (uint32_t i = 0; i < 16; i++) {
		struct gl_stream *s = &m->stream[(hash + i) % GL_STREAMS];
		if (gl_load(&s->state) == 2 && matches(s, context, handle, thread))
			return s;
	}
	if (!make)
		return NULL;
	struct gl_stream *found = NULL;
	gl_lock(&m->lock);
	struct gl_clock *clock = gl_clock_of(m, context);
	for (uint32_t i = 0; clock && i < 16 && !found; i++) {
		struct gl_stream *s = &m->stream[(hash + i) % GL_STREAMS];
		if (gl_load(&s->state) == 2 && matches(s, context, handle, thread))
			found = s;
		else if (gl_load(&s->state) == 0) {
			begin(s, context, handle, thread, clock);
			found = s;
		}
	}
	gl_unlock(&m->lock);
	return found;
}
