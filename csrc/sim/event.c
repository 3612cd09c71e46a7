/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: an item of a small cost of its own whose time of completion is kept.
 */
#include <stdlib.h>

#include "sim.h"

SIM_EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	SIM_ENTER(cuEventCreate);
	SIM_CURRENT(ctx);
	if (!out || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	CUevent event = calloc(1, sizeof(*event));
	if (!event || !sim_handle_add(event, SIM_EVENT)) {
		free(event);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	event->ctx = ctx;
	event->flags = flags;
	*out = event;
	return CUDA_SUCCESS;
}

/* Take the event off the queue it is still waiting in. */
static void unmark(CUevent event)
{
	CUcontext on = event->on;

	if (!event->recorded || event->done || !on || !on->alive || !on->marks)
		return;
	CUevent *mark = &on->marks[event->item % SIM_QUEUE_DEPTH];
	if (*mark == event)
		*mark = NULL;
}

static CUresult destroy(CUevent event)
{
	if (!sim_handle_is(event, SIM_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	unmark(event);
	sim_handle_drop(event);
	free(event->tips);
	free(event);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	SIM_ENTER(cuEventDestroy_v2);
	return destroy(event);
}

SIM_EXPORT CUresult cuEventDestroy(CUevent event)
{
	SIM_ENTER(cuEventDestroy);
	return destroy(event);
}

static CUresult record(CUevent event, CUstream handle, unsigned int flags, bool fence)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!sim_handle_is(event, SIM_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_TRY(sim_implicit(stream));
	if (stream->capture)
		return sim_capture_record(stream, event, flags);
	if (event->ctx != stream->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	unmark(event);
	event->capture = 0;
	struct sim_work work = { .mark = event };
	work.item.cost_ns = sim_model_of(stream->ctx->gpu)->event_ns;
	work.item.fence = fence;
	return sim_submit_work(stream, &work);
}

SIM_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
	SIM_ENTER(cuEventRecord);
	return record(event, stream, 0, false);
}

SIM_EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	return cuEventRecord(event, SIM_PTSZ(stream));
}

SIM_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	SIM_ENTER(cuEventRecordWithFlags);
	if (flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	return record(event, stream, flags, false);
}

SIM_EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags)
{
	return cuEventRecordWithFlags(event, SIM_PTSZ(stream), flags);
}

/* With several lanes an event may be done before the queue's head has come to it. */
static bool finished(CUevent event)
{
	if (event->recorded && !event->done && event->on->alive && sim_done(event->on, event->item + 1) && !event->done) {
		event->done = true;
		event->done_ns = sim_item_at(&sim_machine->queues[event->on->queue], event->item)->done_ns;
	}
	return !event->recorded || event->done || !event->on->alive;
}

SIM_EXPORT CUresult cuEventQuery(CUevent event)
{
	SIM_ENTER(cuEventQuery);
	if (!sim_handle_is(event, SIM_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_TRY(sim_unsafe());
	if (event->capture)
		return SIM_ERROR_CAPTURED_EVENT;
	return finished(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_EXPORT CUresult cuEventSynchronize(CUevent event)
{
	SIM_ENTER(cuEventSynchronize);
	if (!sim_handle_is(event, SIM_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_TRY(sim_unsafe());
	if (event->capture)
		return SIM_ERROR_CAPTURED_EVENT;
	if (finished(event))
		return CUDA_SUCCESS;
	CUcontext on = event->on;
	sim_wait_item(on, event->item + 1);
	if (on->alive)
		sim_pools_settle(on->gpu);
	return CUDA_SUCCESS;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
	if (!ms)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(start, SIM_EVENT) || !sim_handle_is(end, SIM_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || !start->recorded || !end->recorded)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!finished(start) || !finished(end))
		return CUDA_ERROR_NOT_READY;
	*ms = (float)((double)((int64_t)(end->done_ns - start->done_ns)) / 1e6);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	SIM_ENTER(cuEventElapsedTime);
	return elapsed(ms, start, end);
}

SIM_EXPORT CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
	SIM_ENTER(cuEventElapsedTime_v2);
	return elapsed(ms, start, end);
}

static CUresult wait_event(CUstream handle, CUevent event, unsigned int flags, bool fence)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!sim_handle_is(event, SIM_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (event->capture || stream->capture)
		return sim_capture_wait(stream, event, flags);
	if (finished(event))
		return CUDA_SUCCESS;
	struct sim_work work = { .item.fence = fence };
	if (event->on == stream->ctx) {
		work.item.after = event->item + 1;
	} else {
		work.item.other = event->on->queue;
		work.item.other_id = event->on->id;
		work.item.other_after = event->item + 1;
	}
	return sim_submit_work(stream, &work);
}

SIM_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	SIM_ENTER(cuStreamWaitEvent);
	return wait_event(stream, event, flags, false);
}

SIM_EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
	return cuStreamWaitEvent(SIM_PTSZ(stream), event, flags);
}

/* A context's record and wait stand for all of its streams, as the legacy stream does here. */
SIM_EXPORT CUresult cuCtxRecordEvent(CUcontext ctx, CUevent event)
{
	SIM_ENTER(cuCtxRecordEvent);
	if (!sim_handle_is(ctx, SIM_CTX))
		return CUDA_ERROR_INVALID_CONTEXT;
	return record(event, ctx->legacy, 0, true);
}

SIM_EXPORT CUresult cuCtxWaitEvent(CUcontext ctx, CUevent event)
{
	SIM_ENTER(cuCtxWaitEvent);
	if (!sim_handle_is(ctx, SIM_CTX))
		return CUDA_ERROR_INVALID_CONTEXT;
	return wait_event(ctx->legacy, event, 0, true);
}
