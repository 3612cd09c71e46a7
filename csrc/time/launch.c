/* SPDX-License-Identifier: Apache-2.0
 *
 * Metering a launch: who it is charged to, whether it may go now, and whether it is measured.  The usual launch costs
 * the host some tens of ns: no lock, no event, one look at the clock at most.
 */
#include "time/types.h"

#include <string.h>

#include "time/launch.h"

#define LOOK_NS UINT64_C(200000)       /* between looks at the marks under way */
#define UNKNOWN_NS UINT64_C(20000)     /* charged for a launch that nothing is known of */
#define FREE_SAMPLE_NS UINT64_C(4000000) /* between samples, as between marks, where launches are not held back */
enum { KNOWN = 4, CLOCK_EVERY = 8, LIGHT_EVERY = 16, UNKNOWN_AHEAD = 2, UNKNOWN_WAIT_NS = 100000000 };

#define LIGHT_NS UINT64_C(100000)      /* dearer launches, and such a sum of cheaper ones, are charged at once */
/* So many launches in a stream are charged one by one before any is charged with its neighbours: then what is missing
 * in the sums at any time, less than LIGHT_EVERY launches and LIGHT_NS, is little. */
enum { MANY = 1024 };

/* What this thread used last, valid while `epoch` is the process's. */
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
	if (GL_LIKELY(gl_load(&gl_self.meter) != NULL))
		return true;
	gl_lock(&gl_self.setup_lock);
	if (!gl_self.meter) {
		void *at = mmap(NULL, sizeof(struct gl_meter), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (at != MAP_FAILED) {
			struct gl_meter *m = at;
			m->epoch = ((uint64_t)gl_self.pid << 32) ^ gl_now_ns();
			gl_store(&gl_self.meter, m);
		}
	}
	gl_unlock(&gl_self.setup_lock);
	return gl_self.meter != NULL;
}

static bool captures(CUstream stream, bool per_thread)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	if (GL_LIKELY(!gl_peek(&gl_self.capturing)))
		return false;
	CUresult r = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status) : REAL(cuStreamIsCapturing)(stream, &status);
	return r == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The twin only differs for the default stream. */
static bool is_per_thread(CUstream handle, bool per_thread)
{
	return handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread);
}

/* The stream that this thread used last, if that is the one and still exists; its context may be another's by now. */
static struct gl_stream *same_stream(const struct gl_meter *m, CUstream handle, bool per_thread)
{
	bool same = last.epoch == m->epoch && last.handle == handle && last.per_thread == per_thread && last.stream &&
		    gl_peek(&last.stream->context) == last.context && gl_peek(&last.stream->handle) == handle;
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
	last.context = context;
	last.handle = handle;
	last.per_thread = per_thread;
	last.sure = 0;
	last.stream = s;
	return s;
}

static void look(struct gl_meter *m, struct gl_stream *s)
{
	if (gl_peek(&s->head) == gl_peek(&s->tail) || !gl_try_lock(&s->lock))
		return;
	gl_marks_collect(m, s);
	gl_unlock(&s->lock);
}

static void mark(struct gl_meter *m, struct gl_stream *s)
{
	if (!gl_try_lock(&s->lock))
		return;
	gl_marks_collect(m, s);
	gl_stream_settle(m, s);
	if (gl_peek(&s->launches))
		gl_mark_put(s, GL_MARK_PLAIN, NULL, 0, 0);
	gl_unlock(&s->lock);
}

bool gl_stream_markable(const struct gl_stream *s, uint64_t *thread)
{
	uint64_t owner = gl_peek(&s->thread);
	CUstream handle = gl_peek(&s->handle);
	if (owner && !*thread)
		*thread = (uint64_t)gl_syscall(SYS_gettid);
	if (owner && owner != *thread)
		return false;
	bool legacy = !owner && (handle == NULL || handle == CU_STREAM_LEGACY);
	return !__atomic_load_n(&gl_self.capturing, __ATOMIC_SEQ_CST) || (!legacy && !captures(handle, owner != 0));
}

/* A burst ends here: it is to be measured to its end in every stream, and not together with the pause to come.  A
 * capture that another thread begins meanwhile waits until this is done (hook_capture.c). */
static void mark_all(struct gl_meter *m, CUcontext context)
{
	uint64_t thread = 0;
	__atomic_fetch_add(&gl_self.marking, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < GL_STREAMS; i++) {
		struct gl_stream *s = &m->stream[i];
		if (gl_load(&s->state) == 2 && gl_peek(&s->context) == context &&
		    (gl_peek(&s->launches) || gl_peek(&s->pending)) && gl_stream_markable(s, &thread))
			mark(m, s);
	}
	__atomic_fetch_sub(&gl_self.marking, 1, __ATOMIC_SEQ_CST);
}

/* Under a limit a program must not run far ahead on launches of unknown length: it could owe seconds before the first
 * measurement comes back. */
static void wait_for_first_sample(struct gl_meter *m, struct gl_launch *l)
{
	uint64_t start = gl_now_ns();
	while (gl_peek(&l->cost->samples) == 0 && gl_peek(&l->cost->unsampled) >= UNKNOWN_AHEAD &&
	       gl_now_ns() - start < UNKNOWN_WAIT_NS) {
		look(m, l->stream);
		if (gl_peek(&l->cost->samples) || gl_peek(&l->cost->unsampled) < UNKNOWN_AHEAD)
			break;
		struct timespec nap = {0, 50000};
		(void)gl_syscall(SYS_nanosleep, &nap, NULL);
	}
}

static void pass_gate(struct gl_meter *m, struct gl_launch *l)
{
	if (GL_LIKELY(gl_bucket_free(m, l->gpu)))
		return;
	if (l->stream && GL_UNLIKELY(gl_peek(&l->cost->samples) == 0))
		wait_for_first_sample(m, l);
	if (GL_LIKELY(gl_bucket_open(m, l->gpu)))
		return;
	mark_all(m, l->stream ? l->stream->context : NULL);
	gl_bucket_wait(m, l->gpu, l->stream ? l->stream->context : NULL);
}

/* Where nobody is held back, costs serve statistics alone: then samples of known launches are rare in time, too. */
static bool is_too_soon(struct gl_meter *m, const struct gl_launch *l)
{
	if (gl_bucket_mark_ns(l->gpu) < FREE_SAMPLE_NS || gl_peek(&l->cost->samples) < KNOWN)
		return false;
	uint64_t now = gl_now_ns(), *at = &m->gpu[l->gpu->index].sampled_at_ns;
	if (now - gl_peek(at) < FREE_SAMPLE_NS)
		return true;
	gl_put(at, now);
	return false;
}

static void start_sample(struct gl_meter *m, struct gl_launch *l)
{
	struct gl_stream *s = l->stream;
	if (!gl_cost_wants_sample(l->cost) || is_too_soon(m, l) || !gl_try_lock(&s->lock))
		return;
	gl_marks_collect(m, s);
	if (s->head - s->tail + 2 <= GL_MARKS && gl_mark_put(s, GL_MARK_BEFORE, NULL, 0, 0)) {
		l->sampling = true;
		l->before_ns = gl_now_ns();
	} else {
		gl_unlock(&s->lock);
	}
}

static uint64_t charge_of(const struct gl_meter *m, const struct gl_gpu *gpu, uint64_t cost_ns)
{
	uint32_t overlap = gl_peek(&m->gpu[gpu->index].overlap);
	return overlap ? cost_ns * overlap / 1024 : cost_ns;
}

static void begin_interval(struct gl_stream *s, uint64_t now)
{
	if (gl_peek(&s->launches) == 0 && gl_peek(&s->pending) == 0)
		gl_put(&s->first_ns, now ? now : gl_now_ns());
}

/* Asking for the current context costs a tenth of what all of this may cost.  While the process has only one, the
 * answer is relied on for a few launches: if the thread turns to a new one in between, they are charged to the old. */
static bool is_current(const struct gl_meter *m, CUcontext context)
{
	CUcontext now;
	if (GL_LIKELY(last.sure)) {
		last.sure--;
		return true;
	}
	if (REAL(cuCtxGetCurrent)(&now) != CUDA_SUCCESS || now != context)
		return false;
	last.sure = gl_peek(&m->clocks) == 1 ? LIGHT_EVERY - 1 : 0;
	return true;
}

/* The launch that host-bound programs do most: cheap, its cost known, nothing to hold it back and no sample due.  False:
 * it is another one. */
static bool begin_light(struct gl_meter *m, struct gl_launch *l, uint64_t key, CUstream stream, bool per_thread)
{
	struct gl_stream *s = same_stream(m, stream, is_per_thread(stream, per_thread));
	if (!s || gl_peek(&s->seen) < MANY || gl_peek(&gl_self.capturing) || !is_current(m, last.context))
		return false;
	struct gl_gpu *gpu = s->clock->gpu;
	struct gl_cost *cost = gl_cost_of(m, key);
	uint64_t ns = gl_peek(&cost->cost_ns);
	uint32_t countdown = gl_peek(&cost->countdown);
	if (!gl_peek(&cost->samples) || ns >= LIGHT_NS || !countdown || !gl_bucket_free(m, gpu))
		return false;
	gl_put(&cost->countdown, countdown - 1);
	l->gpu = gpu;
	l->stream = s;
	l->light = true;
	l->charged_ns = charge_of(m, gpu, ns);
	begin_interval(s, 0);
	return true;
}

void gl_launch_begin(struct gl_launch *l, enum gl_launch_kind kind, uint64_t key, CUstream stream, bool per_thread)
{
	CUcontext context = NULL;
	*l = (struct gl_launch){0};
	if (!gl_meter_start())
		return;
	struct gl_meter *m = gl_self.meter;
	if (kind == GL_KERNEL && GL_LIKELY(begin_light(m, l, key, stream, per_thread)))
		return;
	if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
		return;
	bool capturing = captures(stream, per_thread);
	struct gl_stream *s = capturing ? NULL : find_stream(m, context, stream, per_thread, true);
	struct gl_gpu *gpu = s ? s->clock->gpu : gl_gpu_current();
	if (!gpu)
		return;
	gl_add(&gpu->account->launches[capturing ? GL_CAPTURED : kind], 1);
	if (capturing)
		return;
	l->gpu = gpu;
	l->stream = s;
	l->cost = gl_cost_of(m, key);
	if (s)
		gl_stream_settle(m, s);
	pass_gate(m, l);
	bool known = gl_peek(&l->cost->samples) != 0;
	if (GL_UNLIKELY(!known))
		gl_overhead_mark(gpu); /* its code may only now be loaded onto the card */
	l->charged_ns = charge_of(m, gpu, known ? gl_peek(&l->cost->cost_ns) : UNKNOWN_NS);
	gl_spend(m, gpu, l->charged_ns);
	if (!s)
		return;
	start_sample(m, l);
	if (!known && l->sampling)
		gl_add(&l->cost->unsampled, 1);
	begin_interval(s, l->before_ns);
}

/* Puts a mark if it is time for one. */
static void go_on(struct gl_meter *m, const struct gl_launch *l, uint64_t estimate, uint64_t every)
{
	struct gl_stream *s = l->stream;
	uint64_t now = gl_now_ns();
	(void)gl_policy_fresh(now);
	if (estimate >= every || now - gl_peek(&s->marked_ns) >= every)
		mark(m, s);
	else if (now - gl_peek(&s->looked_ns) >= (every < FREE_SAMPLE_NS ? LOOK_NS : FREE_SAMPLE_NS))
		look(m, s);
}

static void after_launch(struct gl_meter *m, struct gl_launch *l)
{
	struct gl_stream *s = l->stream;
	uint32_t launches = gl_add(&s->launches, 1) + 1;
	uint64_t estimate = gl_add(&s->charged_ns, l->charged_ns) + l->charged_ns;
	if (gl_peek(&s->seen) < MANY)
		gl_put(&s->seen, gl_peek(&s->seen) + 1);
	if (l->sampling) {
		uint64_t now = gl_now_ns();
		gl_mark_put(s, GL_MARK_AFTER, l->cost, now, now - l->before_ns);
		gl_unlock(&s->lock);
		return;
	}
	uint64_t every = gl_bucket_mark_ns(l->gpu);
	if (GL_UNLIKELY(estimate >= every || launches % CLOCK_EVERY == 0))
		go_on(m, l, estimate, every);
}

static void after_light_launch(struct gl_meter *m, struct gl_launch *l)
{
	uint64_t one = GL_PENDING_ONE + l->charged_ns, pending = gl_add(&l->stream->pending, one) + one;
	if (GL_LIKELY(pending < LIGHT_EVERY * GL_PENDING_ONE && pending % GL_PENDING_ONE < LIGHT_NS))
		return;
	gl_stream_settle(m, l->stream);
	go_on(m, l, gl_peek(&l->stream->charged_ns), gl_bucket_mark_ns(l->gpu));
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
		else
			gl_sub(&l->gpu->account->outstanding_ns, l->charged_ns);
		return result;
	}
	if (l->sampling) {
		gl_put(&l->cost->unsampled, 0);
		gl_unlock(&l->stream->lock);
	}
	gl_spend_correct(m, l->gpu, l->charged_ns, 0);
	return result;
}

void gl_meter_stream_waits(CUstream stream, bool per_thread)
{
	struct gl_meter *m = gl_load(&gl_self.meter);
	CUcontext context;
	if (!m || captures(stream, per_thread) || REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
		return;
	struct gl_stream *s = find_stream(m, context, stream, per_thread, false);
	if (s)
		gl_put(&s->waited, 1u);
}
