/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams.  Work of one stream is in order; so is all work of a context on a card that runs one kernel of
 * it at a time (key `concurrency`).  The legacy stream and each thread's default stream are made on use.
 */
#include <stdlib.h>

#include "sim.h"

static CUresult create(CUstream *out, unsigned int flags, int priority)
{
	SIM_CURRENT(ctx);
	if (!out || flags > CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	if (priority > 0)
		priority = 0;
	if (priority < -5)
		priority = -5;
	CUstream stream;
	sim_stream_new(ctx, flags, priority, &stream);
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = stream;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	SIM_ENTER(cuStreamCreate);
	return create(stream, flags, 0);
}

SIM_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	SIM_ENTER(cuStreamCreateWithPriority);
	return create(stream, flags, priority);
}

static CUresult destroy(CUstream stream)
{
	if (!sim_handle_is(stream, SIM_STREAM) || stream == stream->ctx->legacy)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_capture_stream_gone(stream);
	sim_handle_drop(stream); /* its work goes on */
	free(stream->tips);
	free(stream);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	SIM_ENTER(cuStreamDestroy_v2);
	return destroy(stream);
}

SIM_EXPORT CUresult cuStreamDestroy(CUstream stream)
{
	SIM_ENTER(cuStreamDestroy);
	return destroy(stream);
}

SIM_EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
	SIM_ENTER(cuStreamSynchronize);
	CUstream stream;
	SIM_TRY(sim_stream(handle, &stream));
	SIM_TRY(sim_unsafe());
	if (sim_capturing(stream)) {
		sim_capture_stream_invalid(stream);
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	CUcontext ctx = stream->ctx;
	if (stream == ctx->legacy)
		sim_wait_legacy(ctx);
	else
		sim_wait_item(ctx, stream->last);
	if (ctx->alive)
		sim_pools_settle(ctx->gpu);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream handle)
{
	return cuStreamSynchronize(SIM_PTSZ(handle));
}

SIM_EXPORT CUresult cuStreamQuery(CUstream handle)
{
	SIM_ENTER(cuStreamQuery);
	CUstream stream;
	SIM_TRY(sim_stream(handle, &stream));
	SIM_TRY(sim_unsafe());
	if (sim_capturing(stream)) {
		sim_capture_stream_invalid(stream);
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	bool done = stream == stream->ctx->legacy ? sim_legacy_done(stream->ctx) : sim_done(stream->ctx, stream->last);
	return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_EXPORT CUresult cuStreamQuery_ptsz(CUstream handle)
{
	return cuStreamQuery(SIM_PTSZ(handle));
}

/* One fact of a stream, asked by the call for the legacy stream and by that for each thread's own. */
#define FACT(name, type, fact)                                                          \
	SIM_EXPORT CUresult name(CUstream handle, type *out)                            \
	{                                                                               \
		SIM_ENTER(name);                                                        \
		CUstream stream;                                                        \
		SIM_TRY(sim_stream(handle, &stream));                                   \
		if (!out)                                                               \
			return CUDA_ERROR_INVALID_VALUE;                                \
		*out = fact;                                                            \
		return CUDA_SUCCESS;                                                    \
	}                                                                               \
	SIM_EXPORT CUresult name##_ptsz(CUstream handle, type *out)                     \
	{                                                                               \
		return name(SIM_PTSZ(handle), out);                                     \
	}

FACT(cuStreamGetFlags, unsigned int, stream->flags)
FACT(cuStreamGetPriority, int, stream->priority)
FACT(cuStreamGetId, unsigned long long, stream->id)
FACT(cuStreamGetCtx, CUcontext, stream->ctx)
FACT(cuStreamGetDevice, CUdevice, stream->ctx->device)

SIM_EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *ctx, CUgreenCtx *green)
{
	SIM_ENTER(cuStreamGetCtx_v2);
	CUstream stream;
	SIM_TRY(sim_stream(handle, &stream));
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	*ctx = stream->ctx;
	if (green)
		*green = NULL;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetCtx_v2_ptsz(CUstream handle, CUcontext *ctx, CUgreenCtx *green)
{
	return cuStreamGetCtx_v2(SIM_PTSZ(handle), ctx, green);
}
