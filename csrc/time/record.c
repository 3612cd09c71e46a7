/* SPDX-License-Identifier: Apache-2.0
 *
 * Driver calls of the meter's own that depend on the current context.  A stream that has a handle of its own works
 * whichever context is current; a default stream is the current context's, so that one is made current for the call.
 */
#include "time/types.h"

bool gl_enter(CUcontext context, bool *pushed)
{
	CUcontext now;
	*pushed = false;
	if (GL_LIKELY(REAL(cuCtxGetCurrent)(&now) == CUDA_SUCCESS && now == context))
		return true;
	*pushed = REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
	return *pushed;
}

void gl_leave(bool pushed)
{
	CUcontext popped;
	if (pushed)
		(void)REAL(cuCtxPopCurrent_v2)(&popped);
}

/* A driver before CUDA 9.2 cannot tell a stream's context; the current one is assumed there. */
CUresult gl_context_of(CUstream handle, CUcontext *context)
{
	*context = NULL;
	if (!gl_is_default_stream(handle) && REAL(cuStreamGetCtx)(handle, context) == CUDA_SUCCESS && *context)
		return CUDA_SUCCESS;
	return REAL(cuCtxGetCurrent)(context);
}

/* Calls one of two twins; the second one is for the calling thread's default stream. */
#define ON_STREAM(stream, call, twin)                                                                        \
	do {                                                                                                 \
		bool pushed = false;                                                                         \
		if (gl_is_default_stream((stream)->handle) && !gl_enter((stream)->context, &pushed))         \
			return CUDA_ERROR_INVALID_CONTEXT;                                                   \
		CUresult result = (stream)->thread ? (twin) : (call);                                        \
		gl_leave(pushed);                                                                            \
		return result;                                                                               \
	} while (0)

CUresult gl_record(const struct gl_stream *stream, CUevent event)
{
	ON_STREAM(stream, REAL(cuEventRecord)(event, stream->handle), REAL(cuEventRecord_ptsz)(event, stream->handle));
}

CUresult gl_query(const struct gl_stream *stream)
{
	ON_STREAM(stream, REAL(cuStreamQuery)(stream->handle), REAL(cuStreamQuery_ptsz)(stream->handle));
}

CUresult gl_drain(const struct gl_stream *stream)
{
	ON_STREAM(stream, REAL(cuStreamSynchronize)(stream->handle), REAL(cuStreamSynchronize_ptsz)(stream->handle));
}
