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
	uint32_t percent;                     /* of wall time, by which it is filled */
	uint64_t keep_ns, resume_ns;          /* most that is kept; what an empty bucket waits for */
};

/* GPU time really spent.  spent_ns only grows, so an excess charge is deducted from later charges. */
uint64_t gl_really_spent(const uint64_t *spent_ns, const uint64_t *refund_ns);
void gl_clocked_refill(struct gl_clocked bucket);
int64_t gl_clocked_in_hand(struct gl_clocked bucket);
/* How long until the bucket has enough to continue; 0: it has. */
uint64_t gl_clocked_sleep(struct gl_clocked bucket);
/* Starts the bucket with neither credit nor debt when the wall clock takes over. */
void gl_clocked_settle(struct gl_clocked bucket);

/* ---- gang_limit.c ---- */

/* The gang's limit in percent, if this gpu alone would have `percent`. */
uint32_t gl_gang_percent(uint32_t percent);
void gl_gang_settle(void);
/* The gpu has worked for busy_ns somewhere in [from_ns, to_ns). */
void gl_gang_spend(const struct gl_gpu *gpu, uint64_t from_ns, uint64_t to_ns, uint64_t busy_ns, uint64_t now_ns);
/* True if a launch may go now; and how long to sleep before the next look, 0 if a launch may go. */
bool gl_gang_open(const struct gl_gpu *gpu, uint32_t percent);
uint64_t gl_gang_sleep(const struct gl_gpu *gpu, uint32_t percent);

/* ---- waited_for.c ---- */

/* True if a launch that is held back must go because work on a GPU may be waiting for it.  Counts it as released. */
bool gl_is_waited_for(struct gl_meter *m, const struct gl_gpu *gpu, const struct gl_stream *stream);
/* Takes note of a launch that goes within the limit. */
void gl_goes_by_itself(struct gl_meter *m, const struct gl_gpu *gpu);
/* True if another process of the gang, or another GPU of this process, has unfinished work. */
bool gl_is_sibling_at_work(const struct gl_gpu *gpu);
/* True if the gpu's work between these times, which is known to take cost_ns, has waited for a launch that was held
 * back.  alone: no sibling has worked on the GPU meanwhile. */
bool gl_has_waited(const struct gl_gpu *gpu, uint64_t from_ns, uint64_t to_ns, uint64_t cost_ns, bool alone);

/* ---- throttle.c ---- */

/* True if nothing holds launches back: no limit, no other tenant, not suspended.  A few ns. */
bool gl_bucket_free(struct gl_meter *m, struct gl_gpu *gpu);
/* True if a launch may go now.  A few ns. */
bool gl_bucket_open(struct gl_meter *m, struct gl_gpu *gpu);
/* Sleeps until a launch may go.  stream: the launch's stream; NULL: not known. */
void gl_bucket_wait(struct gl_meter *m, struct gl_gpu *gpu, const struct gl_stream *stream);
/* The time between marks that the gpu's rules need. */
uint64_t gl_bucket_mark_ns(const struct gl_gpu *gpu);

#pragma GCC visibility pop

#endif
