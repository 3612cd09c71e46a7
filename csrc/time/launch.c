/* SPDX-License-Identifier: Apache-2.0
 *
 * Metering a launch: finds the account to charge, waits until the launch may go, and decides whether to measure it.
 * The usual launch costs the host some tens of ns: no lock, no event, one look at the clock at most.
 */
#include "time/gate.h"
#include "time/types.h"

#include <stdlib.h>

#include "time/launch.h"

#define LOOK_NS UINT64_C(200000)       /* between looks at the marks under way */
#define FREE_LOOK_NS UINT64_C(4000000) /* the same while launches are not held back */
enum { CLOCK_EVERY = 8, LIGHT_EVERY = 16, UNKNOWN_AHEAD = 2, UNKNOWN_WAIT_NS = 100000000 };

#define LIGHT_NS UINT64_C(100000)      /* dearer launches, and this sum of cheaper ones, are charged at once */
/* The first launches in a stream are charged one by one; later ones are charged several at a time.  So the part that
 * the sums lack at any time, less than LIGHT_EVERY launches and LIGHT_NS, is small in comparison. */
enum { MANY = 1024 };

/* The stream that this thread used last; valid while `epoch` is the process's. */
static __thread struct {
	uint64_t epoch;
	CUcontext context;
	CUstream handle;
	bool per_thread;
	uint8_t sure; /* light launches for which the context is not looked up again */
	struct gl_stream *stream;
} last;

bool gl_meter_start(void)
{
	if (GL_LIKELY(gl_load_acquire(&gl_self.meter) != NULL))
		return true;
	gl_lock(&gl_self.setup_lock);
	if (!gl_self.meter) {
		void *at = mmap(NULL, sizeof(struct gl_meter), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (at != MAP_FAILED) {
			struct gl_meter *m = at;
			m->epoch = ((uint64_t)gl_self.pid << 32) ^ gl_now_ns();
			gl_store_release(&gl_self.meter, m);
			gl_store_release(&gl_self.look, gl_meter_look);
			(void)atexit(gl_meter_finish); /* after libcuda's own handler, so it runs before that */
		}
	}
	gl_unlock(&gl_self.setup_lock);
	return gl_self.meter != NULL;
}

/* The _ptsz twin only differs for the default stream. */
static bool is_per_thread(CUstream handle, bool per_thread)
{
	return handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread);
}

/* The stream that this thread used last, if it is this one and still exists.  For a default stream the current context
 * may have changed since. */
static struct gl_stream *same_stream(const struct gl_meter *m, CUstream handle, bool per_thread)
{
	bool same = last.epoch == m->epoch && last.handle == handle && last.per_thread == per_thread && last.stream &&
		    gl_load_relaxed(&last.stream->context) == last.context &&
		    gl_load_relaxed(&last.stream->handle) == handle;
	return GL_LIKELY(same) ? last.stream : NULL;
}

struct gl_stream *gl_stream_last(const struct gl_meter *m)
{
	return last.epoch == m->epoch ? last.stream : NULL;
}

static struct gl_stream *find_stream(struct gl_meter *m, CUcontext context, CUstream handle, bool per_thread, bool make)
{
	per_thread = is_per_thread(handle, per_thread);
	if (GL_LIKELY(last.context == context && same_stream(m, handle, per_thread)))
		return last.stream;
	struct gl_stream *s = gl_stream_of(m, context, handle, per_thread, make);
	if (!s)
		return NULL;
	last.epoch = m->epoch;
	last.context = gl_load_relaxed(&s->context);
	last.handle = handle;
	last.per_thread = per_thread;
	last.sure = 0;
	last.stream = s;
	return s;
}

/* A known stream's context is not asked for again. */
static CUresult context_for(const struct gl_meter *m, CUstream handle, bool per_thread, CUcontext *context)
{
	const struct gl_stream *s = gl_is_default_stream(handle) ? NULL : same_stream(m, handle, is_per_thread(handle, per_thread));
	if (!s)
		return gl_context_of(handle, context);
	*context = last.context;
	return CUDA_SUCCESS;
}

static void look(struct gl_meter *m, struct gl_stream *s)
{
	if (gl_load_relaxed(&s->head) == gl_load_relaxed(&s->tail) || !gl_try_lock(&s->lock))
		return;
	gl_marks_collect(m, s);
	gl_unlock(&s->lock);
}

/* The end of a burst: every stream is marked now, so that the burst is not measured together with the pause that
 * follows. A capture that another thread begins meanwhile waits until this is done (hook_capture.c). */
static void mark_all(struct gl_meter *m, CUcontext context)
{
	struct gl_stream *s;
	uint64_t thread = 0;
	__atomic_fetch_add(&gl_self.marking, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; (s = gl_stream_next(m, &i));)
		if (gl_load_relaxed(&s->context) == context && gl_has_launches(s) && gl_stream_markable(s, &thread))
			gl_mark_now(m, s);
	__atomic_fetch_sub(&gl_self.marking, 1, __ATOMIC_SEQ_CST);
}

/* Under a limit a program must not run far ahead with launches of unknown length: its debt could be seconds before the
 * first measurement is read. */
static void wait_for_first_sample(struct gl_meter *m, struct gl_launch *l)
{
	uint64_t start = gl_now_ns();
	while (gl_load_relaxed(&l->cost->samples) == 0 && gl_load_relaxed(&l->cost->unsampled) >= UNKNOWN_AHEAD &&
	       gl_now_ns() - start < UNKNOWN_WAIT_NS) {
		look(m, l->stream);
		if (gl_load_relaxed(&l->cost->samples) || gl_load_relaxed(&l->cost->unsampled) < UNKNOWN_AHEAD)
			break;
		struct timespec nap = {0, 50000};
		(void)gl_syscall(SYS_nanosleep, &nap, NULL);
	}
}

static void pass_gate(struct gl_meter *m, struct gl_launch *l)
{
	if (GL_LIKELY(gl_bucket_free(m, l->gpu)))
		return;
	if (l->stream && GL_UNLIKELY(gl_load_relaxed(&l->cost->samples) == 0))
		wait_for_first_sample(m, l);
	if (GL_LIKELY(gl_bucket_open(m, l->gpu)))
		return;
	mark_all(m, l->stream ? l->stream->context : NULL);
	gl_bucket_wait(m, l->gpu, l->stream);
}

static uint64_t charge_of(const struct gl_meter *m, const struct gl_gpu *gpu, uint64_t cost_ns)
{
	uint32_t overlap = gl_load_relaxed(&m->gpu[gpu->index].overlap);
	uint64_t ns = overlap ? cost_ns * overlap / 1024 : cost_ns;
	return ns ? ns : 1; /* unfinished work is never nothing */
}

static void begin_interval(struct gl_stream *s, uint64_t now)
{
	if (gl_load_relaxed(&s->launches) == 0 && gl_load_relaxed(&s->pending) == 0)
		gl_store_relaxed(&s->first_ns, now ? now : gl_now_ns());
}

/* Asking for the current context takes a tenth of the time that a launch may cost.  While the process has only one
 * context, the answer is reused for a few launches.  If the thread switches to a new context in between, they are
 * charged to the old one. */
static bool is_current(const struct gl_meter *m, CUcontext context)
{
	CUcontext now;
	if (GL_LIKELY(last.sure)) {
		last.sure--;
		return true;
	}
	if (REAL(cuCtxGetCurrent)(&now) != CUDA_SUCCESS || now != context)
		return false;
	last.sure = gl_load_relaxed(&m->clocks) == 1 ? LIGHT_EVERY - 1 : 0;
	return true;
}

/* The fast path of host-bound programs: a cheap launch of known cost, nothing that holds it back, and no sample due.
 * False: the launch needs the slow path. */
static bool begin_light(struct gl_meter *m, struct gl_launch *l, uint64_t key, CUstream stream, bool per_thread)
{
	struct gl_stream *s = same_stream(m, stream, is_per_thread(stream, per_thread));
	if (!s || gl_load_relaxed(&s->seen) < MANY || gl_load_relaxed(&gl_self.capturing) ||
	    (gl_is_default_stream(stream) && !is_current(m, last.context)))
		return false;
	struct gl_gpu *gpu = s->clock->gpu;
	struct gl_cost *cost = gl_cost_of(m, key);
	uint64_t ns = gl_load_relaxed(&cost->cost_ns);
	uint32_t countdown = gl_load_relaxed(&cost->countdown);
	if (!gl_load_relaxed(&cost->samples) || ns >= LIGHT_NS || !countdown || !gl_bucket_free(m, gpu))
		return false;
	gl_store_relaxed(&cost->countdown, countdown - 1);
	l->gpu = gpu;
	l->stream = s;
	l->light = true;
	l->charged_ns = charge_of(m, gpu, ns);
	begin_interval(s, 0);
	return true;
}

/* If the device of the launch is not known either, the launch cannot be charged. */
static CUresult gpu_for(const struct gl_stream *s, CUcontext context, struct gl_gpu **gpu)
{
	CUdevice dev = -1;
	bool pushed;
	*gpu = s ? s->clock->gpu : NULL;
	if (s)
		return CUDA_SUCCESS;
	CUresult r = gl_enter(context, &pushed) ? REAL(cuCtxGetDevice)(&dev) : CUDA_ERROR_INVALID_CONTEXT;
	gl_leave(pushed);
	*gpu = r == CUDA_SUCCESS ? gl_gpu_of(dev) : NULL;
	if (!*gpu)
		gl_log(GL_WARN, "a launch is refused: the driver does not say on which device it would run (%d)", r);
	return r != CUDA_SUCCESS ? r : *gpu ? CUDA_SUCCESS : GL_FAILED_RESULT;
}

/* Neither events nor the stream itself tell when work ends.  A launch that cannot be limited is refused. */
static bool is_blind(struct gl_meter *m, const struct gl_launch *l)
{
	const struct gl_stream *s = l->stream;
	return GL_UNLIKELY(s && gl_load_relaxed(&s->clock->coarse) && gl_load_relaxed(&s->clock->unsaid)) &&
	       !gl_bucket_free(m, l->gpu);
}

static void charge(struct gl_meter *m, struct gl_launch *l)
{
	bool known = gl_load_relaxed(&l->cost->samples) != 0;
	if (GL_UNLIKELY(!known))
		gl_overhead_mark(l->gpu); /* the driver may load its code onto the card only now */
	l->charged_ns = charge_of(m, l->gpu, known ? gl_load_relaxed(&l->cost->cost_ns) : GL_UNKNOWN_NS);
	l->unknown = !known;
	gl_spend(m, l->gpu, l->charged_ns);
	if (!l->stream) {
		gl_sample_apart_begin(m, l);
		return;
	}
	gl_sample_begin(m, l);
	if (!known && l->sampling)
		gl_add_relaxed(&l->cost->unsampled, 1);
	begin_interval(l->stream, l->before_ns);
}

CUresult gl_launch_begin(struct gl_launch *l, enum gl_launch_kind kind, uint64_t key, CUstream stream, bool per_thread)
{
	CUcontext context = NULL;
	struct gl_gpu *gpu;
	*l = (struct gl_launch){0};
	if (!gl_meter_start())
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct gl_meter *m = gl_self.meter;
	if (kind == GL_KERNEL && GL_LIKELY(begin_light(m, l, key, stream, per_thread)))
		return CUDA_SUCCESS;
	CUresult r = context_for(m, stream, per_thread, &context);
	if (r != CUDA_SUCCESS || !context)
		return r; /* without a context the driver returns the right error */
	bool capturing = gl_captures(stream, per_thread);
	l->stream = capturing ? NULL : find_stream(m, context, stream, per_thread, true);
	r = gpu_for(l->stream, context, &gpu);
	if (r == CUDA_SUCCESS)
		gl_add_relaxed(&gpu->account->launches[capturing ? GL_CAPTURED : kind], 1);
	if (r != CUDA_SUCCESS || capturing)
		return capturing ? CUDA_SUCCESS : r;
	l->gpu = gpu;
	l->context = context;
	l->handle = stream;
	l->per_thread = is_per_thread(stream, per_thread);
	l->cost = gl_cost_of(m, key);
	if (l->stream)
		gl_stream_settle(m, l->stream);
	pass_gate(m, l);
	if (is_blind(m, l)) {
		l->gpu = NULL;
		return GL_FAILED_RESULT;
	}
	charge(m, l);
	return CUDA_SUCCESS;
}

/* Records a mark if one is due. */
static void go_on(struct gl_meter *m, const struct gl_launch *l, uint64_t estimate, uint64_t every)
{
	struct gl_stream *s = l->stream;
	uint64_t now = gl_now_ns();
	(void)gl_policy_fresh(now);
	if (estimate >= every || now - gl_load_relaxed(&s->marked_ns) >= every)
		gl_mark_now(m, s);
	else if (now - gl_load_relaxed(&s->looked_ns) >= (every < FREE_LOOK_NS ? LOOK_NS : FREE_LOOK_NS))
		look(m, s);
}

static void note_unknown(struct gl_launch *l)
{
	const struct gl_unknown one = {l->cost, l->charged_ns, 1};
	if (!l->sampling && !gl_try_lock(&l->stream->lock))
		return;
	gl_unknown_add(&l->stream->unknown, &one);
	if (!l->sampling)
		gl_unlock(&l->stream->lock);
}

static void after_launch(struct gl_meter *m, struct gl_launch *l)
{
	struct gl_stream *s = l->stream;
	uint32_t launches = gl_add_relaxed(&s->launches, 1) + 1;
	uint64_t estimate = gl_add_relaxed(&s->charged_ns, l->charged_ns) + l->charged_ns;
	if (gl_load_relaxed(&s->seen) < MANY)
		gl_store_relaxed(&s->seen, gl_load_relaxed(&s->seen) + 1);
	if (GL_UNLIKELY(l->unknown))
		note_unknown(l);
	if (GL_UNLIKELY(gl_load_relaxed(&s->clock->coarse)))
		gl_clock_say(s->clock);
	if (l->sampling) {
		gl_sample_end(m, l);
		return;
	}
	uint64_t every = gl_bucket_mark_ns(l->gpu);
	if (GL_UNLIKELY(estimate >= every || launches % CLOCK_EVERY == 0))
		go_on(m, l, estimate, every);
}

static void after_light_launch(struct gl_meter *m, struct gl_launch *l)
{
	uint64_t one = GL_PENDING_ONE + l->charged_ns, pending = gl_add_relaxed(&l->stream->pending, one) + one;
	if (GL_LIKELY(pending < LIGHT_EVERY * GL_PENDING_ONE && pending % GL_PENDING_ONE < LIGHT_NS))
		return;
	gl_stream_settle(m, l->stream);
	go_on(m, l, gl_load_relaxed(&l->stream->charged_ns), gl_bucket_mark_ns(l->gpu));
}

CUresult gl_launch_end(struct gl_launch *l, CUresult result)
{
	if (GL_UNLIKELY(!l->gpu))
		return result;
	struct gl_meter *m = gl_self.meter;
	if (GL_LIKELY(l->light)) {
		if (GL_LIKELY(result == CUDA_SUCCESS))
			after_light_launch(m, l);
		return result;
	}
	if (GL_LIKELY(result == CUDA_SUCCESS)) {
		if (l->stream)
			after_launch(m, l);
		else if (l->apart)
			gl_sample_apart_end(m, l);
		else
			gl_sub_relaxed(&l->gpu->account->outstanding_ns, l->charged_ns);
		return result;
	}
	if (l->sampling) {
		gl_store_relaxed(&l->cost->unsampled, 0);
		gl_unlock(&l->stream->lock);
	}
	gl_spend_correct(m, l->gpu, l->charged_ns, 0);
	return result;
}

void gl_meter_stream_waits(CUstream stream, bool per_thread)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	CUcontext context;
	if (!m || gl_captures(stream, per_thread) || context_for(m, stream, per_thread, &context) != CUDA_SUCCESS || !context)
		return;
	struct gl_stream *s = find_stream(m, context, stream, per_thread, false);
	if (s)
		gl_store_relaxed(&s->waited, 1u);
}
