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
 */
#ifndef GL_METER_H
#define GL_METER_H

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
};

struct gl_cost {
	uint64_t key;        /* hash of function and shape, or of a graph; 0: free */
	uint64_t cost_ns;    /* running mean */
	uint32_t samples;
	uint16_t sure;       /* of them taken while the GPU was ours alone; no more than are counted */
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
	struct gl_gpu *gpu;
	struct gl_lock lock;
	CUevent base;        /* the driver tells times from here; moved forward every few seconds */
	uint64_t base_raw_ns; /* the base on this clock, whose zero was the first base */
	int64_t offset_ns;   /* host time minus raw time, as best known */
	struct gl_bound least[2], most[2]; /* of it: from the marks of this window and of the last */
	struct gl_bound anchor; /* a good lower bound of long ago, to tell the drift by */
	int64_t drift_ppb;   /* of the offset: the two clocks do not run equally fast */
	uint64_t window_ns;  /* host time when this window began */
	uint32_t marks;      /* in this window */
	uint64_t record_ns;  /* the quickest that recording an event took the host */
	uint64_t pair_ns;    /* time between two events recorded back to back: what recording costs the GPU */
	CUevent spare[GL_SPARE_EVENTS];
	uint32_t spares;
	uint32_t events;     /* made in all; for tests and status */
};

enum gl_mark_kind { GL_MARK_PLAIN, GL_MARK_BEFORE, GL_MARK_AFTER };

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
	uint32_t waited;              /* the stream was told to wait for another in the interval */
	struct gl_cost *cost;         /* AFTER: whose sample it is */
};

/* What a launch touches lies together: it is the cache lines that a launch costs. */
struct gl_stream {
	CUcontext context;
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
	struct gl_lock lock;          /* the marks; never held while waiting for GPU time */
	uint64_t looked_ns;           /* host time when marks were last looked at */
	uint64_t finished_ns;         /* when the last finished mark was reached, host clock */
	uint64_t finished_raw_ns;     /* the same on the context's clock */
	uint64_t finished_after_ns;   /* host time when recording it returned */
	uint32_t head, tail;
	struct gl_mark mark[GL_MARKS];
} __attribute__((aligned(64)));

/* One GPU. */
struct gl_gpu_meter {
	uint64_t refund_ns;           /* the device's, so far as it is of this process */
	uint32_t overlap;             /* measured over summed costs, in 1/1024: streams that overlap; 0: 1024 */
	uint32_t unpaced;             /* launches went that no wall clock paced */
	uint32_t waiting;             /* threads of this process waiting for GPU time */
	uint64_t rang_ns;             /* when it last told the daemon that it has work */
	uint64_t launched_ns;         /* when it last launched, while others want the GPU too */
	uint64_t trusted_ns;          /* own_until_ns when that was last relied on */
	uint64_t busy_sum_ns, cost_sum_ns;   /* for the overlap */
	uint64_t sampled_at_ns;       /* when a known launch was last measured, while nobody is held back */
	int64_t beside_owed_ns;       /* at least had beside others, less what was charged for it */
	uint64_t own_until_ns;        /* when the GPU reached this process's last mark */
	uint64_t own_granted_ns, own_at_ns;  /* bucket of a process below its tenant */
} __attribute__((aligned(64)));

#define GL_PENDING_ONE (UINT64_C(1) << 40)

struct gl_meter {
	uint64_t epoch;               /* tells thread-local caches that fork has happened */
	uint32_t clocks;              /* contexts known */
	struct gl_lock lock;          /* adding clocks and streams */
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
/* The launch took no longer than this; returns what it is thought to have taken. */
uint64_t gl_cost_learn_most(struct gl_cost *cost, uint64_t ns);
/* The same where others' work may have been on the GPU in between. */
uint64_t gl_cost_learn_unsure(struct gl_cost *cost, uint64_t ns);
/* True if this launch should be measured; counts down. */
bool gl_cost_wants_sample(struct gl_cost *cost);
/* All costs are to be learned anew: function handles may be reused after an unload. */
void gl_costs_forget(void);
void gl_cost_forget(uint64_t key);
static inline uint64_t gl_key_mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
	return h ^ (h >> 29);
}

/* ---- coverage.c ---- */

/* Counts work that lasted for want_ns somewhere in [from_ns, to_ns), on the host's clock, so far as what was counted
 * before leaves room there; returns how much that is. */
uint64_t gl_cover_take(struct gl_cover *cover, uint64_t from_ns, uint64_t to_ns, uint64_t want_ns, uint64_t now_ns);

/* ---- launch.c ---- */

/* Whether this thread may record an event in a stream that it does not launch in just now: not in another thread's
 * default stream, which it cannot name, and, while a capture is open, neither in a capturing stream nor in the legacy
 * stream, which all others wait for. */
bool gl_stream_markable(const struct gl_stream *stream, uint64_t *thread);
/* The stream that this thread used last; may be another's by now. */
struct gl_stream *gl_stream_last(const struct gl_meter *m);
/* Adds a stream's light launches to all sums. */
void gl_stream_settle(struct gl_meter *m, struct gl_stream *stream);

/* ---- clock.c ---- */

struct gl_clock *gl_clock_of(struct gl_meter *m, CUcontext context);
CUevent gl_clock_event(struct gl_clock *clock);
void gl_clock_give(struct gl_clock *clock, CUevent event);
/* Recording an event took the host this long. */
void gl_clock_recorded(struct gl_clock *clock, uint64_t took_ns);
/* When a finished event was reached, on the context's clock and on the host's; false if the driver cannot say.
 * before_ns: host time just before it was recorded; seen_ns: when it was seen done.  May keep the event as the new
 * base: *keep is true then, and the caller must not give it back. */
bool gl_clock_read(struct gl_clock *clock, CUevent event, uint64_t before_ns, uint64_t seen_ns, uint64_t *raw_ns,
		   uint64_t *host_ns, bool *keep);

/* ---- marks.c ---- */

/* make: sets it up if it is new; NULL if there is no room or the context cannot be measured. */
struct gl_stream *gl_stream_of(struct gl_meter *m, CUcontext context, CUstream handle, bool per_thread, bool make);
/* Records a mark; the caller holds stream->lock.  False: no room, or the driver would not. */
bool gl_mark_put(struct gl_stream *stream, enum gl_mark_kind kind, struct gl_cost *cost, uint64_t launched_ns,
		 uint64_t launch_took_ns);
/* Takes in the marks that the GPU has reached; the caller holds stream->lock. */
void gl_marks_collect(struct gl_meter *m, struct gl_stream *stream);
/* The same for every stream of the context (NULL: of all) that has marks under way and is not being used right now. */
void gl_marks_collect_all(struct gl_meter *m, CUcontext context);

/* ---- usage.c ---- */

/* Adds to the GPU time spent by this process on the gpu. */
void gl_spend(struct gl_meter *m, struct gl_gpu *gpu, uint64_t ns);
/* The GPU reached the process's mark at t, and all that is left is what is outstanding. */
void gl_queue_reached(const struct gl_gpu *gpu, uint64_t t);
/* The program has waited for the GPU: the daemon is told of its end where others wait for it. */
void gl_queue_waited(struct gl_meter *m, const struct gl_gpu *gpu);
/* Puts an earlier charge right. */
void gl_spend_correct(struct gl_meter *m, struct gl_gpu *gpu, uint64_t charged_ns, uint64_t measured_ns);

/* ---- throttle.c ---- */

/* Nothing holds launches back: no limit, nobody to share with, not suspended.  A few ns. */
bool gl_bucket_free(struct gl_meter *m, struct gl_gpu *gpu);
/* A launch may go now.  A few ns. */
bool gl_bucket_open(struct gl_meter *m, struct gl_gpu *gpu);
/* Sleeps until it may. */
void gl_bucket_wait(struct gl_meter *m, struct gl_gpu *gpu, CUcontext context);
/* The time between marks that the gpu's rules need. */
uint64_t gl_bucket_mark_ns(const struct gl_gpu *gpu);

#pragma GCC visibility pop

#endif
