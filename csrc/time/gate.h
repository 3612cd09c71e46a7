/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a launch may go now, by file: throttle.c decides, by buckets and by what running work waits for.
 */
#ifndef GL_GATE_H
#define GL_GATE_H

#include "process/process.h"

struct gl_meter;
struct gl_stream;

#pragma GCC visibility push(hidden)

/* ---- clocked.c: a bucket that the wall clock fills ---- */

struct gl_clocked {
	uint64_t *granted_ns, *at_ns;
	const uint64_t *spent_ns, *refund_ns; /* refund_ns: NULL: none */
	uint32_t percent;                     /* of wall time that it is filled with */
	uint64_t keep_ns, resume_ns;          /* most that is kept; what a bucket that ran dry waits for */
};

/* What was spent in truth: spent_ns only grows, so what was charged too much is taken off later charges. */
uint64_t gl_really_spent(const uint64_t *spent_ns, const uint64_t *refund_ns);
void gl_clocked_refill(struct gl_clocked bucket);
int64_t gl_clocked_in_hand(struct gl_clocked bucket);
/* How long until there is enough to go on; 0: there is. */
uint64_t gl_clocked_sleep(struct gl_clocked bucket);
/* The wall clock takes over: it begins with an even account. */
void gl_clocked_settle(struct gl_clocked bucket);

/* ---- gang_limit.c ---- */

/* The percent of the gang, of which this gpu alone would have `percent`. */
uint32_t gl_gang_percent(uint32_t percent);
void gl_gang_settle(void);
/* The gpu has worked for busy_ns somewhere in [from_ns, to_ns). */
void gl_gang_spend(const struct gl_gpu *gpu, uint64_t from_ns, uint64_t to_ns, uint64_t busy_ns, uint64_t now_ns);
/* A launch may go now, and how long to sleep before looking again; 0: it may. */
bool gl_gang_open(const struct gl_gpu *gpu, uint32_t percent);
uint64_t gl_gang_sleep(const struct gl_gpu *gpu, uint32_t percent);

/* ---- waited_for.c ---- */

/* A launch that is held back must go, since work on a GPU may be waiting for it; it is counted as let go. */
bool gl_is_waited_for(struct gl_meter *m, const struct gl_gpu *gpu, const struct gl_stream *stream);
/* A launch goes because it may. */
void gl_goes_by_itself(struct gl_meter *m, const struct gl_gpu *gpu);
/* A process of the gang has work unfinished. */
bool gl_is_sibling_at_work(const struct gl_gpu *gpu);
/* The gpu's work that was done between these times, and is known to cost so much, has waited for a launch that was held
 * back.  alone: no sibling has worked on the GPU meanwhile. */
bool gl_has_waited(const struct gl_gpu *gpu, uint64_t from_ns, uint64_t to_ns, uint64_t cost_ns, bool alone);

/* ---- throttle.c ---- */

/* Nothing holds launches back: no limit, no other tenant, not suspended.  A few ns. */
bool gl_bucket_free(struct gl_meter *m, struct gl_gpu *gpu);
/* A launch may go now.  A few ns. */
bool gl_bucket_open(struct gl_meter *m, struct gl_gpu *gpu);
/* Sleeps until it may.  stream: where it is to go; NULL: not known. */
void gl_bucket_wait(struct gl_meter *m, struct gl_gpu *gpu, const struct gl_stream *stream);
/* The time between marks that the gpu's rules need. */
uint64_t gl_bucket_mark_ns(const struct gl_gpu *gpu);

#pragma GCC visibility pop

#endif
