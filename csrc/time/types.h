/* SPDX-License-Identifier: Apache-2.0
 *
 * Measuring GPU time.  Glossary:
 *
 *   cost      what one launch of a function with one launch shape, or of a graph, keeps the GPU busy (cost.c)
 *   mark      a timing event that the shim records in a stream, about one a millisecond; the launches since the
 *             mark before it are its interval (marks.c)
 *   sample    two marks round a single launch, from which its cost is learned
 *   clock     a context's event time stamps on the host's monotonic clock (clock.c)
 *   charge    what is added to the tenant's spent GPU time: the cost at submission, put right at the mark
 *   cover     which time on the clock has been charged (coverage.c)
 *   coarse    of a clock: the driver refuses it timing events, so that work is measured by the wall clock (coarse.c)
 */
#ifndef GL_TIME_TYPES_H
#define GL_TIME_TYPES_H

#include "base/testpoint.h"
#include "process/process.h"
#include "segment/segment.h"

#pragma GCC visibility push(hidden)

enum {
	GL_COSTS = 8192,   /* launch shapes known at a time; further ones share an entry */
	GL_STREAMS = 1024, /* streams measured at a time; further ones are charged by cost alone */
	GL_CLOCKS = 64,    /* contexts measured at a time; likewise */
	GL_MARKS = 16,     /* marks under way in a stream; while all are, intervals grow longer */
	GL_SPARE_EVENTS = 32,
	GL_FINAL_MARKS = 4, /* marks of a stream that are not for samples */
};

/* Charged for a launch of unknown cost until its cost is known. */
#define GL_UNKNOWN_NS UINT64_C(20000)

struct gl_cost {
	uint64_t key;        /* hash of function and shape, or of a graph; 0: free */
	uint64_t cost_ns;    /* running mean */
	uint32_t samples;
	uint16_t sure;       /* of the samples, taken while no other process used the GPU; saturates */
	int16_t odd;         /* such samples in a row of more than twice the mean, or, negative, of less than half */
	uint32_t countdown;  /* launches until the next sample */
	uint32_t unsampled;  /* launches under way while no sample has come back */
} __attribute__((aligned(32)));

/* Host time minus raw time, as seen at a raw time. */
struct gl_bound {
	int64_t offset_ns;
	uint64_t raw_ns;
	bool set;
};

struct gl_clock {
	CUcontext context;   /* NULL: free */
	uint32_t ready;
	uint32_t coarse;     /* 1: no events here */
	uint32_t unsaid;     /* coarse: 1: the driver cannot report whether a stream is idle either */
	uint64_t retry_ns;   /* coarse: host time from which on events are tried again */
	struct gl_gpu *gpu;
	struct gl_lock lock;
	CUevent base;        /* the driver's times count from here; moved forward every few seconds */
	uint64_t base_raw_ns; /* time of the base on this clock; the first base was 0 */
	int64_t offset_ns;   /* host time minus raw time, best estimate */
	struct gl_bound least[2], most[2]; /* bounds of the offset, by the marks of this window and of the last */
	struct gl_bound anchor; /* an old and close lower bound, from which the drift is derived */
	int64_t drift_ppb;   /* of the offset: the two clocks do not run equally fast */
	uint64_t window_ns;  /* host time when this window began */
	uint32_t marks;      /* in this window */
	uint64_t record_ns;  /* shortest host time that recording an event took */
	uint64_t pair_ns;    /* time between two events recorded back to back: the GPU's cost of recording */
	CUevent spare[GL_SPARE_EVENTS];
	uint32_t spares;
	uint32_t events;     /* made in all; for tests and status */
};

enum gl_mark_kind { GL_MARK_PLAIN, GL_MARK_BEFORE, GL_MARK_AFTER };

/* Launches that were charged GL_UNKNOWN_NS each; once the mark is reached their cost is known. */
struct gl_unknown {
	struct gl_cost *cost; /* of the first launch, used for all */
	uint64_t charged_ns;
	uint32_t launches;
};

struct gl_mark {
	CUevent event;
	enum gl_mark_kind kind;
	uint64_t before_ns, after_ns; /* host time round recording it */
	uint64_t first_ns;            /* host time of the interval's first launch */
	uint64_t launched_ns;         /* AFTER: host time when the launch call returned */
	uint64_t launch_took_ns;
	uint64_t cost_ns;             /* sum of the interval's costs */
	uint64_t charged_ns;          /* what was charged for them at submission */
	uint32_t launches;
	uint32_t waited;              /* a wait for another stream was queued in the interval */
	struct gl_cost *cost;         /* AFTER: whose sample it is */
	struct gl_unknown unknown;
};

/* The fields that a launch touches are adjacent, because a launch costs as much as the cache lines that it touches. */
struct gl_stream {
	CUcontext context;            /* of the stream, whichever context is current */
	CUstream handle;
	uint64_t thread;              /* of a per-thread default stream; else 0 */
	struct gl_clock *clock;
	uint64_t charged_ns;          /* since the last mark */
	uint64_t pending;             /* light launches not yet in any sum: their number above GL_PENDING_ONE, and ns */
	uint64_t first_ns;
	uint64_t marked_ns;           /* host time of the last mark */
	uint32_t launches;
	uint32_t waited;
	uint32_t seen;                /* launches; no more than are counted */
	uint32_t state;               /* 0 free, 2 in use */
	struct gl_lock lock;          /* the marks; never held while waiting for a grant */
	uint64_t looked_ns;           /* host time when marks were last looked at */
	uint64_t finished_ns;         /* when the last finished mark was reached, host clock */
	uint64_t finished_raw_ns;     /* the same on the context's clock */
	uint64_t finished_after_ns;   /* host time when recording it returned */
	uint64_t left_ns;             /* host time just before its context was ended, if it had work then; else 0 */
	uint32_t left;                /* 1: its context ends, so the driver must not be asked about it */
	uint32_t running;             /* 1: it was seen at work when the process began to exit */
	struct gl_unknown unknown;    /* since the last mark; changed under the lock */
	uint32_t head, tail;
	struct gl_mark mark[GL_MARKS];
} __attribute__((aligned(64)));

/* One GPU. */
struct gl_gpu_meter {
	uint64_t refund_ns;           /* this process's part of the device's refund_ns */
	uint32_t overlap;             /* measured over summed costs, in 1/1024: streams that overlap; 0: 1024 */
	uint32_t unpaced;             /* 1: launches went that the wall clock did not pace */
	uint32_t waiting;             /* threads of this process waiting for GPU time */
	uint32_t said_coarse;
	uint64_t rang_ns;             /* when it last told the daemon that it has work */
	uint64_t launched_ns;         /* when it last launched while other tenants want the GPU too */
	uint64_t trusted_ns;          /* value of own_until_ns when it was last relied on */
	uint64_t busy_sum_ns, cost_sum_ns;   /* for the overlap */
	uint64_t sampled_at_ns;       /* when a known launch was last measured, while no launch is held back */
	int64_t beside_owed_ns;       /* minimum use beside other processes, less what was charged for it */
	uint64_t own_until_ns;        /* when the GPU reached this process's last mark */
	uint64_t own_granted_ns, own_at_ns;  /* bucket of a process whose limit is below its tenant's */
	uint64_t released_ns;         /* when a launch was last released because running work waited for it */
	uint64_t behind_from_ns;      /* account->spent_ns when it began to catch up with siblings; 0: it does not */
	uint32_t in_gang;             /* 1: the gang's bucket paces it, not the device's */
} __attribute__((aligned(64)));

#define GL_PENDING_ONE (UINT64_C(1) << 40)

struct gl_meter {
	uint64_t epoch;               /* tells thread-local caches that fork has happened */
	uint32_t clocks;              /* contexts known */
	struct gl_lock lock;          /* adding clocks and streams */
	struct gl_lock look_lock;     /* one look for the whole process at a time (idle.c) */
	uint32_t closing;             /* 1: the process exits */
	uint64_t live[GL_STREAMS / 64]; /* a bit for each stream in use */
	struct gl_gpu_meter gpu[GL_MAX_DEVICES];
	struct gl_cover cover[GL_MAX_DEVICES]; /* by this process's own work */
	struct gl_clock clock[GL_CLOCKS];
	struct gl_stream stream[GL_STREAMS];
	struct gl_cost cost[GL_COSTS];
	struct gl_cost overflow;
};

/* ---- cost.c ---- */

struct gl_cost *gl_cost_of(struct gl_meter *m, uint64_t key);
/* Folds a measured duration into the mean; returns the duration. */
uint64_t gl_cost_learn(struct gl_cost *cost, uint64_t ns);
/* Learns from an upper bound of a launch's time; returns the estimate of that time. */
uint64_t gl_cost_learn_most(struct gl_cost *cost, uint64_t ns);
/* The same for a launch during which other work may have been on the GPU. */
uint64_t gl_cost_learn_unsure(struct gl_cost *cost, uint64_t ns);
/* True if this launch should be measured; counts down. */
bool gl_cost_wants_sample(struct gl_cost *cost);
/* Drops all learned costs: function handles may be reused after an unload. */
void gl_costs_forget(void);
void gl_cost_forget(uint64_t key);
static inline uint64_t gl_key_mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
	return h ^ (h >> 29);
}

/* ---- coverage.c ---- */

/* Counts work that lasted for want_ns somewhere in [from_ns, to_ns) on the host's clock.  Time that was counted before
 * is not counted again.  Returns how much was counted now. */
uint64_t gl_cover_take(struct gl_cover *cover, uint64_t from_ns, uint64_t to_ns, uint64_t want_ns, uint64_t now_ns);

/* ---- beside.c ---- */

/* True if only this tenant's work has been on the GPU since then, as far as the daemon knows. */
bool gl_exclusive(const struct gl_gpu *gpu, uint64_t since_ns);
/* True if other processes of the tenant may have used the GPU since then. */
bool gl_beside_siblings(const struct gl_meter *m, const struct gl_gpu *gpu, uint64_t since_ns);
/* Upper bound of the processes that have work on the GPU; 1 if it is not known. */
uint32_t gl_sharers(const struct gl_gpu *gpu);

/* ---- launch.c ---- */

/* The stream that this thread used last; the entry may be another stream's by now. */
struct gl_stream *gl_stream_last(const struct gl_meter *m);

/* ---- record.c: the driver's calls that need the right context ---- */

/* True for the handles of default streams: the current context's legacy stream, or the calling thread's. */
static inline bool gl_is_default_stream(CUstream handle)
{
	return (uintptr_t)handle <= (uintptr_t)CU_STREAM_PER_THREAD;
}
/* Makes the context current if it is not.  False: the driver refused.  *pushed must be passed to gl_leave. */
bool gl_enter(CUcontext context, bool *pushed);
void gl_leave(bool pushed);
/* The context of a stream: its own, or for a default stream the current one. */
CUresult gl_context_of(CUstream handle, CUcontext *context);
CUresult gl_record(const struct gl_stream *stream, CUevent event);
/* CUDA_SUCCESS: the stream is idle; CUDA_ERROR_NOT_READY: it has unfinished work. */
CUresult gl_query(const struct gl_stream *stream);
/* Waits for the stream. */
CUresult gl_drain(const struct gl_stream *stream);

/* ---- clock.c ---- */

/* The context's clock, made if it is new; a coarse one if the driver has no events.  NULL: there is no room, or the
 * device is not known. */
struct gl_clock *gl_clock_of(struct gl_meter *m, CUcontext context);
CUevent gl_clock_event(struct gl_clock *clock);
void gl_clock_give(struct gl_clock *clock, CUevent event);
/* Takes note of how long the host took to record an event. */
void gl_clock_recorded(struct gl_clock *clock, uint64_t took_ns);
/* Tells when a finished event was reached, on the context's clock and on the host's.  False: the driver does not tell.
 * before_ns: host time just before it was recorded; seen_ns: when it was seen done.  The clock may keep the event as
 * its new base: *keep is true then, and the caller must not call gl_clock_give for it. */
bool gl_clock_read(struct gl_clock *clock, CUevent event, uint64_t before_ns, uint64_t seen_ns, uint64_t *raw_ns,
		   uint64_t *host_ns, bool *keep);
/* Measures the context's work by the wall clock from now on, because the driver refused an event.  Not for the error
 * codes of a broken context. */
void gl_clock_degrade(struct gl_clock *clock, const char *call, CUresult code);
/* Logs once per process that a launch was measured by a coarse clock. */
void gl_clock_say(struct gl_clock *clock);
/* Tries events again, once a second. */
void gl_clock_retry(struct gl_meter *m, struct gl_clock *clock);

/* ---- streams.c ---- */

/* make: sets the entry up if it is new.  NULL: there is no room, or the context cannot be measured. */
struct gl_stream *gl_stream_of(struct gl_meter *m, CUcontext context, CUstream handle, bool per_thread, bool make);
/* Adds a stream's light launches to all sums. */
void gl_stream_settle(struct gl_meter *m, struct gl_stream *stream);
/* The next stream in use at or above the index; NULL: none.  Sets the index to the one behind it. */
struct gl_stream *gl_stream_next(struct gl_meter *m, uint32_t *index);
void gl_stream_free(struct gl_meter *m, struct gl_stream *stream);
/* The handle of a stream that was destroyed while it had unfinished work: the driver may reuse the real handle. */
#define GL_NO_HANDLE ((CUstream)~(uintptr_t)0)
static inline void gl_stream_orphan(struct gl_stream *stream)
{
	gl_store_relaxed(&stream->handle, GL_NO_HANDLE);
}
static inline bool gl_stream_is_orphan(const struct gl_stream *stream)
{
	return gl_load_relaxed(&stream->handle) == GL_NO_HANDLE;
}
/* True if a stream of this process captures. */
bool gl_captures(CUstream stream, bool per_thread);
/* True if this thread may record an event in a stream that it does not launch in just now.  False for another thread's
 * default stream, which it cannot name.  While a capture is open, also false for a capturing stream and for the legacy
 * stream, for which all other streams wait. */
bool gl_stream_markable(const struct gl_stream *stream, uint64_t *thread);
static inline bool gl_has_launches(const struct gl_stream *stream)
{
	return gl_load_relaxed(&stream->launches) || gl_load_relaxed(&stream->pending);
}
static inline bool gl_has_marks(const struct gl_stream *stream)
{
	return gl_load_relaxed(&stream->head) != gl_load_relaxed(&stream->tail);
}

/* ---- coarse.c: without events; the caller holds stream->lock ---- */

/* Charges what the stream has worked since the last look, and does so for an idle stream as well. */
void gl_coarse_look(struct gl_meter *m, struct gl_stream *stream);
/* The same repeatedly, until the stream is idle or some time has passed.  True: it is idle. */
bool gl_coarse_drain(struct gl_meter *m, struct gl_stream *stream);

/* ---- marks.c ---- */

/* Records a mark; the caller holds stream->lock.  If there is no room, a plain mark replaces the last one.  False: no
 * room, or the driver refused. */
bool gl_mark_put(struct gl_stream *stream, enum gl_mark_kind kind, struct gl_cost *cost, uint64_t launched_ns,
		 uint64_t launch_took_ns);
/* Takes in the marks that the GPU has reached; the caller holds stream->lock. */
void gl_marks_collect(struct gl_meter *m, struct gl_stream *stream);
/* The same, and records a mark if there were launches since the last one.  Does nothing while another thread uses the
 * stream. */
void gl_mark_now(struct gl_meter *m, struct gl_stream *stream);
/* Takes in the marks of every stream of the context (NULL: of all) that is not being used right now. */
void gl_marks_collect_all(struct gl_meter *m, CUcontext context);

/* ---- remains.c: work whose end no mark will tell of; the caller holds stream->lock ---- */

void gl_unknown_add(struct gl_unknown *to, const struct gl_unknown *more);
void gl_unknown_clear(struct gl_unknown *unknown);
/* Ends the stream's marks; their launches are launches since the last mark again. */
void gl_remains_gather(struct gl_stream *stream, bool events_gone);
/* Host time before which this work cannot have run. */
uint64_t gl_remains_since(const struct gl_stream *stream);
/* Charges the work as finished: its expected cost, but at least least_ns and at most most_ns up to `now_ns`. */
void gl_remains_end(struct gl_meter *m, struct gl_stream *stream, uint64_t least_ns, uint64_t most_ns, uint64_t now_ns);
/* Charges worked_ns up to `now_ns` for work that is still running. */
void gl_remains_advance(struct gl_meter *m, struct gl_stream *stream, uint64_t worked_ns, uint64_t now_ns);

/* ---- sample.c ---- */

struct gl_launch;
/* Before and after a launch, if it is to be measured: launch->sampling.  The stream's lock is held in between. */
void gl_sample_begin(struct gl_meter *m, struct gl_launch *launch);
void gl_sample_end(struct gl_meter *m, const struct gl_launch *launch);
/* The same for a launch in a stream that has no entry, where launches are held back: launch->apart.  The thread waits
 * for the launch to end. */
void gl_sample_apart_begin(struct gl_meter *m, struct gl_launch *launch);
void gl_sample_apart_end(struct gl_meter *m, const struct gl_launch *launch);

/* ---- idle.c ---- */

/* Takes in finished work that no thread has looked at for a while, and marks the rest.  Called by the thread that talks
 * to the daemon. */
void gl_meter_look(void);
/* True when the process is about to end: no thread of the library may begin a driver call then. */
bool gl_meter_closing(void);
/* Called when the process exits: charges finished work, and takes note of work that still runs. */
void gl_meter_finish(void);

/* ---- usage.c ---- */

/* Adds to the GPU time spent by this process on the gpu. */
void gl_spend(struct gl_meter *m, struct gl_gpu *gpu, uint64_t ns);
/* The GPU reached the process's mark at t; the work that remains is account->outstanding_ns. */
void gl_queue_reached(const struct gl_gpu *gpu, uint64_t t);
/* The program has waited for the GPU: tells the daemon so if other tenants wait for it. */
void gl_queue_waited(struct gl_meter *m, const struct gl_gpu *gpu);
/* Replaces an earlier charge by the measured time; nothing of it is outstanding any more. */
void gl_spend_correct(struct gl_meter *m, struct gl_gpu *gpu, uint64_t charged_ns, uint64_t measured_ns);

#pragma GCC visibility pop

#endif
