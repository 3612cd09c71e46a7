/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture: which streams capture, what a capture forbids, and when it becomes invalid.
 *
 * Measured with driver 580.159: while a capture of mode GLOBAL or THREAD_LOCAL is open, an unsafe call
 * answers 900 and invalidates the capture (later 901); GLOBAL also binds other threads, unless they have
 * exchanged their own mode for another.  In RELAXED mode nothing is forbidden.
 */
#include <stdlib.h>
#include <string.h>

#include "capture.h"

static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static struct sim_capture *captures;
static uint64_t next_id = 1;

struct sim_capture *sim_capture_find(uint64_t id)
{
	struct sim_capture *c = captures;

	while (c && c->id != id)
		c = c->next;
	return c;
}

bool sim_capturing(const struct CUstream_st *stream)
{
	return stream->capture != NULL;
}

/* Whether the calling thread may not make unsafe calls because of this capture. */
static bool forbids(const struct sim_capture *c)
{
	bool mine = c->thread == &thread_mode;

	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || c->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	return mine || (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult sim_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;

	for (struct sim_capture *c = captures; c; c = c->next) {
		if (!forbids(c))
			continue;
		c->invalid = true;
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result;
}

/* The legacy stream waits for all blocking streams, which a capturing one cannot allow. */
CUresult sim_implicit(CUstream stream)
{
	CUresult result = CUDA_SUCCESS;

	if (stream != stream->ctx->legacy)
		return CUDA_SUCCESS;
	for (struct sim_capture *c = captures; c; c = c->next) {
		if (c->origin->ctx != stream->ctx || c->origin->flags & CU_STREAM_NON_BLOCKING)
			continue;
		c->invalid = true;
		result = SIM_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return result;
}

CUresult sim_capture_set_tips(CUstream stream, const CUgraphNode *tips, size_t n)
{
	CUgraphNode *copy = malloc((n + 1) * sizeof(CUgraphNode));

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (n)
		memcpy(copy, tips, n * sizeof(CUgraphNode));
	free(stream->tips);
	stream->tips = copy;
	stream->ntips = n;
	return CUDA_SUCCESS;
}

CUresult sim_capture_join(CUstream stream, struct sim_capture *c)
{
	CUstream *more = realloc(c->streams, (c->nstreams + 1) * sizeof(CUstream));

	if (!more)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->streams = more;
	c->streams[c->nstreams++] = stream;
	stream->capture = c;
	return CUDA_SUCCESS;
}

/* Forget a capture: its streams work normally again.  Its graph is the caller's. */
static void end(struct sim_capture *c)
{
	for (size_t i = 0; i < c->nstreams; i++) {
		c->streams[i]->capture = NULL;
		c->streams[i]->ntips = 0;
	}
	for (struct sim_capture **at = &captures; *at; at = &(*at)->next) {
		if (*at != c)
			continue;
		*at = c->next;
		break;
	}
	free(c->streams);
	free(c);
}

void sim_capture_stream_gone(CUstream stream)
{
	struct sim_capture *c = stream->capture;

	if (!c)
		return;
	c->invalid = true;
	for (size_t i = 0; i < c->nstreams; i++)
		if (c->streams[i] == stream)
			c->streams[i--] = c->streams[--c->nstreams];
	stream->capture = NULL;
	if (c->origin != stream)
		return;
	if (!c->given)
		sim_graph_free(c->graph);
	end(c);
}

static CUresult begin(CUstream handle, int mode, CUgraph given, const CUgraphNode *deps, size_t ndeps)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream == stream->ctx->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		return SIM_ERROR_ILLEGAL_STATE;
	struct sim_capture *c = calloc(1, sizeof(*c));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->id = next_id++;
	c->mode = mode;
	c->thread = &thread_mode;
	c->origin = stream;
	c->given = given != NULL;
	c->graph = given ? given : sim_graph_new();
	if (!c->graph || sim_capture_join(stream, c) || sim_capture_set_tips(stream, deps, ndeps)) {
		stream->capture = NULL;
		free(c->streams);
		free(c);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	c->graph->owned = !given;
	c->next = captures;
	captures = c;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	SIM_ENTER(cuStreamBeginCapture_v2);
	return begin(stream, mode, NULL, NULL, 0);
}

SIM_EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	return cuStreamBeginCapture_v2(SIM_PTSZ(stream), mode);
}

SIM_EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
	SIM_ENTER(cuStreamBeginCapture);
	return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0);
}

SIM_EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	return cuStreamBeginCapture(SIM_PTSZ(stream));
}

SIM_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *deps, const struct sim_edge *edges,
	size_t ndeps, CUstreamCaptureMode mode)
{
	SIM_ENTER(cuStreamBeginCaptureToGraph);
	(void)edges;
	if (!sim_handle_is(graph, SIM_GRAPH) || (ndeps && !deps))
		return CUDA_ERROR_INVALID_VALUE;
	return begin(stream, mode, graph, deps, ndeps);
}

SIM_EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *deps,
	const struct sim_edge *edges, size_t ndeps, CUstreamCaptureMode mode)
{
	return cuStreamBeginCaptureToGraph(SIM_PTSZ(stream), graph, deps, edges, ndeps, mode);
}

/* Every stream that was drawn in must have been waited for by the first one. */
static bool joined(const struct sim_capture *c)
{
	for (size_t i = 0; i < c->nstreams; i++) {
		for (size_t t = 0; t < c->streams[i]->ntips; t++) {
			bool reached = false;
			for (size_t k = 0; k < c->origin->ntips && !reached; k++)
				reached = sim_node_depends(c->origin->tips[k], c->streams[i]->tips[t]);
			if (!reached)
				return false;
		}
	}
	return true;
}

static CUresult end_capture(CUstream handle, CUgraph *out)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	struct sim_capture *c = stream->capture;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!c)
		return SIM_ERROR_ILLEGAL_STATE;
	if (c->origin != stream)
		return SIM_ERROR_STREAM_CAPTURE_UNMATCHED;
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != &thread_mode)
		return SIM_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	CUresult result = c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED :
		joined(c) ? CUDA_SUCCESS : SIM_ERROR_STREAM_CAPTURE_UNJOINED;
	CUgraph graph = c->graph;
	bool given = c->given;
	end(c);
	graph->owned = false;
	if (result && !given)
		sim_graph_free(graph);
	*out = result ? NULL : graph;
	return result;
}

SIM_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	SIM_ENTER(cuStreamEndCapture);
	return end_capture(stream, graph);
}

SIM_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return cuStreamEndCapture(SIM_PTSZ(stream), graph);
}

SIM_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	SIM_ENTER(cuThreadExchangeStreamCaptureMode);
	if (!mode || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	int before = thread_mode;
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

static int status_of(const struct CUstream_st *stream)
{
	if (!stream->capture)
		return CU_STREAM_CAPTURE_STATUS_NONE;
	return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* Asking about the legacy stream while a blocking stream captures is an error, but a harmless one. */
static CUresult ask(CUstream handle, CUstream *stream)
{
	SIM_TRY(sim_stream(handle, stream));
	for (struct sim_capture *c = captures; c; c = c->next)
		if (*stream == (*stream)->ctx->legacy && c->origin->ctx == (*stream)->ctx && !(c->origin->flags & CU_STREAM_NON_BLOCKING))
			return SIM_ERROR_STREAM_CAPTURE_IMPLICIT;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
	SIM_ENTER(cuStreamIsCapturing);
	CUstream stream;

	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(ask(handle, &stream));
	*status = status_of(stream);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
	return cuStreamIsCapturing(SIM_PTSZ(stream), status);
}

CUresult sim_capture_info(CUstream handle, CUstream *stream, CUstreamCaptureStatus *status)
{
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(ask(handle, stream));
	*status = status_of(*stream);
	return CUDA_SUCCESS;
}

void sim_capture_stream_invalid(CUstream stream)
{
	if (stream->capture)
		stream->capture->invalid = true;
}
