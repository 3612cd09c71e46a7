/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture.  While one is open anywhere in the process, launches ask whether their stream is capturing, and
 * the shim's own driver calls are wrapped (gl_capture_relax).  Otherwise neither costs anything.
 */
#include "shim.h"

/* Counts the capture before it begins.  Then waits, some microseconds, for threads that did not see the count and still make
 * the shim's own calls in other streams (mark_all in launch.c is the other half). */
static void begin(void)
{
	struct timespec nap = {0, 20000};
	__atomic_fetch_add(&gl_self.capturing, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 5000 && __atomic_load_n(&gl_self.marking, __ATOMIC_SEQ_CST); i++)
		(void)gl_syscall(SYS_nanosleep, &nap, NULL);
}

static CUresult begun(CUresult result)
{
	if (result != CUDA_SUCCESS)
		gl_sub_relaxed(&gl_self.capturing, 1);
	return result;
}

/* A capture that was invalidated, or whose streams were not joined, has ended as well.  If the driver's error leaves it open
 * or unclear, it counts as open.  That costs a launch some ns; the opposite could invalidate a capture. */
static CUresult ended(CUresult result, const CUgraph *graph)
{
	uint32_t open = gl_load_relaxed(&gl_self.capturing);
	bool over = result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
		    result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	while (over && open && !__atomic_compare_exchange_n(&gl_self.capturing, &open, open - 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	if (over)
		gl_graph_memory_captured(result == CUDA_SUCCESS && graph ? *graph : NULL);
	return result;
}

#define BEGIN(name, params, args)                                                                            \
	CUresult name params                                                                                 \
	{                                                                                                    \
		GL_ENTER(name, args);                                                                        \
		begin();                                                                                     \
		return begun(REAL(name) args);                                                               \
	}
#define END(name, params, args, graph)                                                                             \
	CUresult name params                                                                                 \
	{                                                                                                    \
		GL_ENTER(name, args);                                                                        \
		return ended(REAL(name) args, graph);                                                               \
	}

BEGIN(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN(cuStreamBeginCaptureToGraph,
      (CUstream stream, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges, size_t ndeps, CUstreamCaptureMode mode),
      (stream, graph, deps, edges, ndeps, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz,
      (CUstream stream, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges, size_t ndeps, CUstreamCaptureMode mode),
      (stream, graph, deps, edges, ndeps, mode))
BEGIN(cuStreamBeginCaptureToCig, (CUstream stream, CUstreamCigCaptureParams *cig), (stream, cig))
BEGIN(cuStreamBeginCaptureToCig_ptsz, (CUstream stream, CUstreamCigCaptureParams *cig), (stream, cig))
BEGIN(cuStreamBeginRecaptureToGraph,
      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *user),
      (stream, mode, graph, callback, user))
BEGIN(cuStreamBeginRecaptureToGraph_ptsz,
      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *user),
      (stream, mode, graph, callback, user))
END(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph), graph)
END(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), (stream, graph), graph)
END(cuStreamEndCaptureToCig, (CUstream stream), (stream), NULL)
END(cuStreamEndCaptureToCig_ptsz, (CUstream stream), (stream), NULL)
