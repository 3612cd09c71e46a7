/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams by handle; the legacy stream and threads' default streams.
 */
#include <stdlib.h>

#include "sim.h"

enum { THREAD_STREAMS = 16 };
static __thread struct {
	CUcontext ctx;
	uint64_t ctx_id;
	CUstream stream;
} thread_streams[THREAD_STREAMS];
static uint64_t next_stream_id = 1;

void sim_stream_new(CUcontext ctx, unsigned int flags, int priority, CUstream *out)
{
	CUstream stream = calloc(1, sizeof(*stream));

	*out = stream;
	if (!stream)
		return;
	stream->ctx = ctx;
	stream->flags = flags;
	stream->priority = priority;
	stream->id = next_stream_id++;
	sim_handle_add(stream, SIM_STREAM);
}

/* The calling thread's default stream in `ctx`. */
static CUresult thread_stream(CUcontext ctx, CUstream *out)
{
	int at = 0;

	for (int i = 0; i < THREAD_STREAMS; i++) {
		if (thread_streams[i].ctx == ctx && thread_streams[i].ctx_id == ctx->id) {
			*out = thread_streams[i].stream;
			return CUDA_SUCCESS;
		}
		if (!thread_streams[i].ctx || !thread_streams[i].ctx->alive || thread_streams[i].ctx_id != thread_streams[i].ctx->id)
			at = i;
	}
	sim_stream_new(ctx, CU_STREAM_DEFAULT, 0, out);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	thread_streams[at].ctx = ctx;
	thread_streams[at].ctx_id = ctx->id;
	thread_streams[at].stream = *out;
	return CUDA_SUCCESS;
}

CUresult sim_stream(CUstream handle, CUstream *stream)
{
	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
		SIM_CURRENT(ctx);
		if (handle == CU_STREAM_PER_THREAD)
			return thread_stream(ctx, stream);
		*stream = ctx->legacy;
		return CUDA_SUCCESS;
	}
	if (!sim_handle_is(handle, SIM_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	*stream = handle;
	return CUDA_SUCCESS;
}
