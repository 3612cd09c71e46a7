/* SPDX-License-Identifier: Apache-2.0
 *
 * What the launch hooks call round the real launch (launch.c).
 */
#ifndef GL_LAUNCH_H
#define GL_LAUNCH_H

#include "base/testpoint.h"
#include "process/process.h"
#include "segment/segment.h"

struct gl_cost;
struct gl_stream;

/* One launch, from before its driver call to after it. */
struct gl_launch {
	struct gl_stream *stream; /* NULL: counted, not measured */
	struct gl_cost *cost;
	struct gl_gpu *gpu;       /* NULL: not charged (no context, or the stream is capturing) */
	CUcontext context;        /* these three if the stream has no entry */
	CUstream handle;
	bool per_thread;
	uint64_t charged_ns;
	uint64_t before_ns;       /* set if sampling */
	bool sampling;
	bool unknown;             /* its cost is */
	bool apart;               /* measured although its stream has no entry */
	bool light;               /* charged with its neighbours, a few at a time */
};

#pragma GCC visibility push(hidden)

/* Before the real launch: waits for GPU time if necessary, and charges the launch's expected cost.
 * key: distinguishes launches of different cost (function and shape, or graph).  A result other than CUDA_SUCCESS: the launch
 * cannot be charged and must not be made. */
CUresult gl_launch_begin(struct gl_launch *launch, enum gl_launch_kind kind, uint64_t key, CUstream stream, bool per_thread);
/* Call after the launch with its result, which is returned. */
CUresult gl_launch_end(struct gl_launch *launch, CUresult result);
/* The tables of a process; made at the first launch.  False: no memory for them. */
bool gl_meter_start(void);
/* Call before and after a call that may end a context.  Gone: its events are gone with it, and a new context may get
 * the same handle. */
void gl_meter_context_going(CUcontext context);
void gl_meter_context_stays(CUcontext context);
void gl_meter_context_gone(CUcontext context);
/* Call before the stream is destroyed. */
void gl_meter_stream_gone(CUstream stream);
enum gl_wait { GL_WAIT_STREAM, GL_WAIT_CONTEXT, GL_WAIT_EVENT };
/* The program is about to wait for the GPU.  context: NULL for the current one. */
void gl_meter_waits(enum gl_wait what, CUcontext context, CUstream stream, bool per_thread);
/* The program has waited for the GPU.  Returns `result`. */
CUresult gl_meter_waited(CUresult result);
/* The stream will wait for an event: its idle time until then must not count as work. */
void gl_meter_stream_waits(CUstream stream, bool per_thread);

#pragma GCC visibility pop

#endif
