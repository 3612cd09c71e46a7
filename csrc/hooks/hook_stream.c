/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: tells the meter when a stream is destroyed, will wait for an event, or has been waited for.
 */
#include "shim.h"
#include "time/launch.h"

CUresult cuStreamDestroy(CUstream stream)
{
	GL_ENTER(cuStreamDestroy, (stream));
	gl_meter_stream_gone(stream);
	return REAL(cuStreamDestroy)(stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	GL_ENTER(cuStreamDestroy_v2, (stream));
	gl_meter_stream_gone(stream);
	return REAL(cuStreamDestroy_v2)(stream);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	GL_ENTER(cuStreamWaitEvent, (stream, event, flags));
	gl_meter_stream_waits(stream, false);
	return REAL(cuStreamWaitEvent)(stream, event, flags);
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
	GL_ENTER(cuStreamWaitEvent_ptsz, (stream, event, flags));
	gl_meter_stream_waits(stream, true);
	return REAL(cuStreamWaitEvent_ptsz)(stream, event, flags);
}

static CUresult waited(CUresult result)
{
	result = gl_meter_waited(result);
	if (result == CUDA_SUCCESS)
		gl_pools_waited();
	return result;
}

#define WAIT_FOR_GPU(name, args, what, context, stream, per_thread)                                          \
	do {                                                                                                 \
		GL_ENTER(name, args);                                                                        \
		gl_meter_waits(what, context, stream, per_thread);                                           \
		return waited(REAL(name) args);                                                              \
	} while (0)

CUresult cuStreamSynchronize(CUstream stream)
{
	WAIT_FOR_GPU(cuStreamSynchronize, (stream), GL_WAIT_STREAM, NULL, stream, false);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	WAIT_FOR_GPU(cuStreamSynchronize_ptsz, (stream), GL_WAIT_STREAM, NULL, stream, true);
}

CUresult cuEventSynchronize(CUevent event)
{
	WAIT_FOR_GPU(cuEventSynchronize, (event), GL_WAIT_EVENT, NULL, NULL, false);
}

CUresult cuCtxSynchronize(void)
{
	WAIT_FOR_GPU(cuCtxSynchronize, (), GL_WAIT_CONTEXT, NULL, NULL, false);
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	WAIT_FOR_GPU(cuCtxSynchronize_v2, (ctx), GL_WAIT_CONTEXT, ctx, NULL, false);
}
