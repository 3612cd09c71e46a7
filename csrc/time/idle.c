/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures work after which the program makes no further call: it has nothing more to launch, or it exits.  With a
 * daemon the library's thread looks at such work once a second.  When the process exits, the work is looked at a last
 * time, while the driver still answers; work that still runs then is charged up to the end of the process.  A process
 * that is killed keeps the charges of its launches.
 */
#include "time/launch.h"
#include "time/types.h"

#define IDLE_NS UINT64_C(500000000)   /* no thread has looked at the stream for so long */
#define LOCK_NS UINT64_C(100000000)   /* longest wait of an exit for another thread's look */
#define FINISH_NS UINT64_C(500000)    /* and for marks on idle streams */

static bool has_unfinished(const struct gl_stream *s)
{
	return gl_has_launches(s) || gl_has_marks(s);
}

/* Only a thread that uses a default stream marks it, because other streams would wait for the mark. */
static void look_at(struct gl_meter *m, struct gl_stream *s)
{
	uint64_t thread = 0;
	if (!gl_is_default_stream(gl_load_relaxed(&s->handle)) && gl_stream_markable(s, &thread)) {
		gl_mark_now(m, s);
	} else if (gl_try_lock(&s->lock)) {
		gl_marks_collect(m, s);
		gl_unlock(&s->lock);
	}
}

void gl_meter_look(void)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	struct gl_stream *s;
	if (!m || !gl_try_lock(&m->look_lock))
		return;
	__atomic_fetch_add(&gl_self.marking, 1, __ATOMIC_SEQ_CST);
	uint64_t now = gl_now_ns();
	for (uint32_t i = 0; !gl_load_relaxed(&m->closing) && (s = gl_stream_next(m, &i));)
		if (has_unfinished(s) && now - gl_load_relaxed(&s->marked_ns) > IDLE_NS &&
		    now - gl_load_relaxed(&s->looked_ns) > IDLE_NS)
			look_at(m, s);
	__atomic_fetch_sub(&gl_self.marking, 1, __ATOMIC_SEQ_CST);
	gl_unlock(&m->look_lock);
}

bool gl_meter_closing(void)
{
	const struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	return m && gl_load_acquire(&m->closing);
}

static bool lock_until(struct gl_lock *lock, uint64_t deadline_ns)
{
	struct timespec nap = {0, 50000};
	while (!gl_try_lock(lock)) {
		if (gl_now_ns() >= deadline_ns)
			return false;
		(void)gl_syscall(SYS_nanosleep, &nap, NULL);
	}
	return true;
}

static void finish(struct gl_meter *m, struct gl_stream *s, uint64_t deadline_ns)
{
	uint64_t thread = 0;
	gl_marks_collect(m, s);
	gl_stream_settle(m, s);
	if (gl_load_relaxed(&s->launches) && !gl_load_relaxed(&s->left) && gl_stream_markable(s, &thread))
		(void)gl_mark_put(s, GL_MARK_PLAIN, NULL, 0, 0);
	while (gl_has_marks(s) && !gl_load_relaxed(&s->left) && gl_now_ns() < deadline_ns)
		gl_marks_collect(m, s);
	s->running = gl_has_marks(s) || (gl_load_relaxed(&s->clock->coarse) && gl_load_relaxed(&s->launches));
}

void gl_meter_finish(void)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	struct gl_stream *s;
	int kept = errno;
	if (!m || __atomic_exchange_n(&m->closing, 1, __ATOMIC_ACQ_REL))
		return;
	uint64_t now = gl_now_ns();
	(void)lock_until(&m->look_lock, now + LOCK_NS); /* for good */
	for (uint32_t i = 0; (s = gl_stream_next(m, &i));)
		if (has_unfinished(s) && lock_until(&s->lock, now + FINISH_NS)) {
			finish(m, s, now + FINISH_NS);
			gl_unlock(&s->lock);
		}
	errno = kept;
}

/* This process's last handler, after those of the program and of other libraries: the driver must not be called any
 * more. */
__attribute__((destructor)) static void end_of_process(void)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	struct gl_stream *s;
	for (uint32_t i = 0; m && (s = gl_stream_next(m, &i));) {
		if (!gl_try_lock(&s->lock))
			continue;
		uint64_t now = gl_now_ns(), since = gl_remains_since(s), span = now > since ? now - since : 0;
		if (s->running && has_unfinished(s)) {
			gl_remains_gather(s, true);
			gl_store_relaxed(&s->launches, 0);
			gl_remains_end(m, s, span, span, now);
			s->running = 0;
		}
		gl_unlock(&s->lock);
	}
}
