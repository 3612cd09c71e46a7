/* SPDX-License-Identifier: Apache-2.0
 *
 * A context's clock.  The driver only tells the time between two events, as a float of milliseconds, but a charge needs
 * the interval on the host's clock.  So each context has a base event, which is moved forward before the float loses
 * precision.  The base's host time is kept between two bounds that every mark gives: an event was reached after it was
 * recorded, and before it was seen done.
 */
#include "time/types.h"

enum { ROW = 16 };
#define REBASE_NS UINT64_C(2000000000) /* a float of 2000 ms is exact to 0.1 us */
#define TIGHT_NS 400000
#define WINDOW_NS UINT64_C(200000000)
#define SECOND_NS UINT64_C(1000000000)
#define MAX_DRIFT_PPB 50000
#define RETRY_NS UINT64_C(1000000000) /* until events are tried again where the driver refused them */
enum { GOOD_MARKS = 8, GOOD_WIDTH_NS = 150000 };

static bool between(CUevent from, CUevent to, uint64_t *ns)
{
	float ms;
	if (REAL(cuEventElapsedTime)(&ms, from, to) != CUDA_SUCCESS)
		return false;
	*ns = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
	return true;
}

CUevent gl_clock_event(struct gl_clock *clock)
{
	CUevent event = NULL;
	gl_lock(&clock->lock);
	if (clock->spares)
		event = clock->spare[--clock->spares];
	gl_unlock(&clock->lock);
	if (event)
		return event;
	bool pushed;
	CUresult r = gl_enter(clock->context, &pushed) ? REAL(cuEventCreate)(&event, CU_EVENT_DEFAULT) : CUDA_ERROR_INVALID_CONTEXT;
	gl_leave(pushed);
	if (r != CUDA_SUCCESS) {
		gl_clock_degrade(clock, "cuEventCreate", r);
		return NULL;
	}
	gl_add_relaxed(&clock->events, 1);
	return event;
}

void gl_clock_give(struct gl_clock *clock, CUevent event)
{
	gl_lock(&clock->lock);
	bool keep = clock->spares < GL_SPARE_EVENTS;
	if (keep)
		clock->spare[clock->spares++] = event;
	gl_unlock(&clock->lock);
	if (!keep) {
		REAL(cuEventDestroy_v2)(event);
		gl_sub_relaxed(&clock->events, 1);
	}
}

void gl_clock_recorded(struct gl_clock *clock, uint64_t took_ns)
{
	if (took_ns < gl_load_relaxed(&clock->record_ns))
		gl_store_relaxed(&clock->record_ns, took_ns);
}

static bool reached_soon(CUevent event)
{
	struct timespec nap = {0, 20000};
	for (int i = 0; i < 500; i++) {
		CUresult r = REAL(cuEventQuery)(event);
		if (r != CUDA_ERROR_NOT_READY)
			return r == CUDA_SUCCESS;
		(void)gl_syscall(SYS_nanosleep, &nap, NULL);
	}
	return false;
}

static bool record_row(struct gl_clock *clock, CUstream stream, CUevent event[ROW])
{
	for (int i = 0; i < ROW; i++)
		if (!(event[i] = gl_clock_event(clock)))
			return false;
	for (int i = 0; i < ROW; i++) {
		uint64_t before = gl_now_ns();
		if (REAL(cuEventRecord)(event[i], stream) != CUDA_SUCCESS)
			return false;
		gl_clock_recorded(clock, gl_now_ns() - before);
	}
	return reached_soon(event[ROW - 1]);
}

/* The smallest distance counts: the first few records wait for the host, not for the GPU. */
static bool smallest_distance(CUevent event[ROW], uint64_t *ns)
{
	*ns = UINT64_MAX;
	for (int i = 1; i < ROW; i++) {
		uint64_t distance;
		if (!between(event[i - 1], event[i], &distance))
			return false;
		if (distance < *ns)
			*ns = distance;
	}
	return true;
}

/* Records a few events: the base, and the time of recording itself, which is deducted from every sample.  They go into
 * a stream of their own, because the program's streams may not advance until the program continues.  The context is
 * current. */
static bool calibrate(struct gl_clock *clock)
{
	CUstreamCaptureMode mode = gl_capture_relax();
	CUstream stream;
	CUevent event[ROW] = {0};
	uint64_t now = gl_now_ns();
	clock->record_ns = UINT64_MAX;
	bool good = REAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
	if (good) {
		good = record_row(clock, stream, event) && smallest_distance(event, &clock->pair_ns);
		REAL(cuStreamDestroy_v2)(stream);
	}
	gl_capture_restore(mode);
	if (good) {
		CUevent old = clock->base;
		gl_lock(&clock->lock);
		clock->base = event[0];
		clock->base_raw_ns = 0;
		clock->offset_ns = (int64_t)now;
		clock->window_ns = now;
		gl_unlock(&clock->lock);
		event[0] = old; /* from the time before the clock was coarse */
	}
	for (int i = 0; i < ROW; i++)
		if (event[i])
			gl_clock_give(clock, event[i]);
	return good;
}

static void set_up(struct gl_clock *clock, struct gl_gpu *gpu, CUcontext context)
{
	clock->gpu = gpu;
	clock->context = context;
	gl_store_relaxed(&clock->coarse, 0);
	if (!calibrate(clock))
		gl_clock_degrade(clock, "timing events", 0);
	else
		gl_log(GL_DEBUG, "device %d: recording an event takes the GPU %llu ns", gpu->ordinal, (unsigned long long)clock->pair_ns);
}

struct gl_clock *gl_clock_of(struct gl_meter *m, CUcontext context)
{
	struct gl_clock *unused = NULL;
	for (uint32_t i = 0; i < GL_CLOCKS; i++) {
		struct gl_clock *c = &m->clock[i];
		if (gl_load_acquire(&c->ready) && c->context == context)
			return c;
		if (!unused && !gl_load_acquire(&c->ready))
			unused = c;
	}
	bool pushed;
	struct gl_gpu *gpu = unused && gl_enter(context, &pushed) ? gl_gpu_current() : NULL;
	if (gpu) {
		set_up(unused, gpu, context);
		gl_store_release(&unused->ready, 1u);
		gl_add_relaxed(&m->clocks, 1);
	}
	if (unused)
		gl_leave(pushed);
	return gpu ? unused : NULL;
}

/* ---- without events ---- */

void gl_clock_degrade(struct gl_clock *clock, const char *call, CUresult code)
{
	if (gl_load_relaxed(&gl_self.meter->closing))
		return;
	clock->retry_ns = gl_now_ns() + RETRY_NS;
	if (__atomic_exchange_n(&clock->coarse, 1, __ATOMIC_RELAXED))
		return;
	gl_log(GL_DEBUG, "device %d: %s: error %d", clock->gpu->ordinal, call, code);
}

void gl_clock_say(struct gl_clock *clock)
{
	struct gl_gpu *gpu = clock->gpu;
	if (gl_load_relaxed(&gpu->account->coarse))
		return;
	gl_store_relaxed(&gpu->account->coarse, 1u);
	if (!__atomic_exchange_n(&gl_self.meter->gpu[gpu->index].said_coarse, 1, __ATOMIC_RELAXED))
		gl_log(GL_ERROR, "device %d: the driver refuses timing events, so GPU time is measured by the wall clock, which "
				 "counts more than was used; limits hold", gpu->ordinal);
}

static bool any_coarse(const struct gl_meter *m, const struct gl_gpu *gpu)
{
	for (uint32_t i = 0; i < GL_CLOCKS; i++)
		if (gl_load_acquire(&m->clock[i].ready) && m->clock[i].gpu == gpu && gl_load_relaxed(&m->clock[i].coarse))
			return true;
	return false;
}

void gl_clock_retry(struct gl_meter *m, struct gl_clock *clock)
{
	bool pushed;
	if (gl_now_ns() < clock->retry_ns || gl_load_relaxed(&gl_self.capturing) || !gl_try_lock(&m->lock))
		return;
	clock->retry_ns = gl_now_ns() + RETRY_NS;
	if (gl_load_relaxed(&clock->coarse) && gl_enter(clock->context, &pushed)) {
		if (calibrate(clock)) {
			gl_store_relaxed(&clock->coarse, 0);
			gl_store_relaxed(&clock->gpu->account->coarse, (uint32_t)any_coarse(m, clock->gpu));
			gl_log(GL_WARN, "device %d: GPU time is measured by events again", clock->gpu->ordinal);
		}
		gl_leave(pushed);
	}
	gl_unlock(&m->lock);
}

/* A bound, adjusted to a later raw time. */
static int64_t carried(const struct gl_clock *clock, const struct gl_bound *bound, uint64_t raw_ns)
{
	return bound->offset_ns + ((int64_t)(raw_ns - bound->raw_ns) / 1000 * clock->drift_ppb) / 1000000;
}

/* The two clocks drift apart steadily by some microseconds a second.  The drift is derived from lower bounds at least a
 * second apart. */
static void follow_drift(struct gl_clock *clock)
{
	const struct gl_bound *seen = &clock->least[0];
	if (clock->marks < GOOD_MARKS || !seen->set || !clock->most[0].set ||
	    carried(clock, &clock->most[0], seen->raw_ns) - seen->offset_ns > GOOD_WIDTH_NS)
		return;
	uint64_t apart = seen->raw_ns - clock->anchor.raw_ns;
	if (!clock->anchor.set || apart > 60 * SECOND_NS) {
		clock->anchor = *seen;
		return;
	}
	if (apart < SECOND_NS)
		return;
	int64_t ppb = (seen->offset_ns - clock->anchor.offset_ns) * 1000 / (int64_t)(apart / 1000000);
	if (ppb > -MAX_DRIFT_PPB && ppb < MAX_DRIFT_PPB)
		clock->drift_ppb = clock->drift_ppb ? (clock->drift_ppb * 3 + ppb) / 4 : ppb;
	if (apart > 10 * SECOND_NS)
		clock->anchor = *seen;
}

static void next_window(struct gl_clock *clock, uint64_t now)
{
	if (now - clock->window_ns < WINDOW_NS)
		return;
	follow_drift(clock);
	bool fresh = now - clock->window_ns < 8 * WINDOW_NS;
	clock->least[1] = clock->least[0];
	clock->most[1] = clock->most[0];
	clock->least[1].set &= fresh;
	clock->most[1].set &= fresh;
	clock->least[0].set = clock->most[0].set = false;
	clock->marks = 0;
	clock->window_ns = now;
}

/* Every mark gives two bounds.  A mark on an empty stream is reached within microseconds, so its lower bound is exact.
 * In a stream that never runs empty, the lower bound is too early by the length of the queue; then only an offset
 * beyond either bound is corrected. */
static void adjust(struct gl_clock *clock, int64_t least, int64_t most, uint64_t raw, uint64_t now)
{
	next_window(clock, now);
	clock->marks++;
	for (int i = 0; i < 2; i++) {
		int64_t old_least = carried(clock, &clock->least[i], raw), old_most = carried(clock, &clock->most[i], raw);
		if (clock->least[i].set && old_least > least)
			least = old_least;
		else if (i == 0)
			clock->least[0] = (struct gl_bound){least, raw, true};
		if (clock->most[i].set && old_most < most)
			most = old_most;
		else if (i == 0)
			clock->most[0] = (struct gl_bound){most, raw, true};
	}
	int64_t now_offset = clock->offset_ns;
	if (most - least < TIGHT_NS || now_offset < least)
		clock->offset_ns = least;
	else if (now_offset > most)
		clock->offset_ns = most;
}

bool gl_clock_read(struct gl_clock *clock, CUevent event, uint64_t before_ns, uint64_t seen_ns, uint64_t *raw_ns,
		   uint64_t *host_ns, bool *keep)
{
	uint64_t since;
	CUevent old = NULL;
	gl_lock(&clock->lock);
	*keep = false;
	bool good = between(clock->base, event, &since);
	if (good) {
		*raw_ns = clock->base_raw_ns + since;
		/* The GPU learns of the event at the end of the call, which takes at least record_ns. */
		adjust(clock, (int64_t)(before_ns + gl_load_relaxed(&clock->record_ns) - *raw_ns),
		       (int64_t)(seen_ns - *raw_ns), *raw_ns, seen_ns);
		*host_ns = (uint64_t)((int64_t)*raw_ns + clock->offset_ns);
		if (since > REBASE_NS) {
			old = clock->base;
			clock->base = event;
			clock->base_raw_ns = *raw_ns;
			*keep = true;
		}
	}
	gl_unlock(&clock->lock);
	if (old)
		gl_clock_give(clock, old);
	return good;
}
