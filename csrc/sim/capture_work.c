/* SPDX-License-Identifier: Apache-2.0
 *
 * Work in a capturing stream becomes nodes; events carry a stream's place in the capture to others.
 */
#include <stdlib.h>
#include <string.h>

#include "capture.h"

static CUresult record(CUstream stream, struct sim_payload *payload)
{
	CUgraphNode node;

	if (stream->capture->invalid) {
		sim_payload_clear(payload);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	SIM_TRY(sim_graph_add(stream->capture->graph, stream->tips, stream->ntips, payload, &node));
	return sim_capture_set_tips(stream, &node, 1);
}

CUresult sim_capture_kernel(CUstream stream, const struct sim_launch *launch)
{
	struct sim_payload payload = { 0 };

	CUresult result = sim_payload_kernel(&payload, launch);
	if (result) {
		sim_payload_clear(&payload);
		return result;
	}
	return record(stream, &payload);
}

CUresult sim_capture_copy(CUstream stream, const struct sim_copy *copy)
{
	return record(stream, &(struct sim_payload){ .type = SIM_NODE_MEMCPY, .copy = *copy });
}

CUresult sim_capture_memset(CUstream stream, const sim_memset_params *set)
{
	return record(stream, &(struct sim_payload){ .type = SIM_NODE_MEMSET, .fill = *set });
}

CUresult sim_capture_host(CUstream stream, sim_host_fn fn, void *user)
{
	return record(stream, &(struct sim_payload){ .type = SIM_NODE_HOST, .host = { fn, user } });
}

CUresult sim_capture_graph(CUstream stream, CUgraph graph)
{
	graph->owned = true;
	return record(stream, &(struct sim_payload){ .type = CU_GRAPH_NODE_TYPE_GRAPH, .child = graph });
}

CUresult sim_capture_alloc(CUstream stream, uint64_t bytes, CUdeviceptr *dptr)
{
	struct sim_payload payload = { .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC };

	payload.memory.bytes = bytes;
	payload.memory.device = stream->ctx->device;
	SIM_TRY(sim_graph_memory_plan(stream->ctx->device, bytes, &payload.memory.addr));
	uint64_t addr = payload.memory.addr;
	SIM_TRY(record(stream, &payload));
	*dptr = addr;
	return CUDA_SUCCESS;
}

CUresult sim_capture_free(CUstream stream, CUdeviceptr dptr)
{
	struct sim_payload payload = { .type = CU_GRAPH_NODE_TYPE_MEM_FREE };

	payload.memory.addr = dptr;
	return record(stream, &payload);
}

CUresult sim_capture_record(CUstream stream, CUevent event, unsigned int flags)
{
	if (stream->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (flags) /* "external": a node that records when the graph runs */
		return record(stream, &(struct sim_payload){ .type = SIM_NODE_EVENT_RECORD, .event = event });
	CUgraphNode *tips = malloc((stream->ntips + 1) * sizeof(CUgraphNode));
	if (!tips)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (stream->ntips)
		memcpy(tips, stream->tips, stream->ntips * sizeof(CUgraphNode));
	free(event->tips);
	event->tips = tips;
	event->ntips = stream->ntips;
	event->capture = stream->capture->id;
	return CUDA_SUCCESS;
}

static CUresult add_tips(CUstream stream, const CUgraphNode *more, size_t n)
{
	CUgraphNode *all = malloc((stream->ntips + n + 1) * sizeof(CUgraphNode));
	size_t count = stream->ntips;

	if (!all)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (count)
		memcpy(all, stream->tips, count * sizeof(CUgraphNode));
	for (size_t i = 0; i < n; i++) {
		size_t k = 0;
		while (k < count && all[k] != more[i])
			k++;
		if (k == count)
			all[count++] = more[i];
	}
	free(stream->tips);
	stream->tips = all;
	stream->ntips = count;
	return CUDA_SUCCESS;
}

CUresult sim_capture_wait(CUstream stream, CUevent event, unsigned int flags)
{
	struct sim_capture *own = stream->capture, *its = sim_capture_find(event->capture);

	if (own && own->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (own && flags)
		return record(stream, &(struct sim_payload){ .type = SIM_NODE_WAIT_EVENT, .event = event });
	if (!its) {
		if (!own)
			return SIM_ERROR_CAPTURED_EVENT;
		own->invalid = true; /* depends on work outside the capture */
		return SIM_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	if (its->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (own && own != its) {
		own->invalid = its->invalid = true;
		return SIM_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (!own && stream == stream->ctx->legacy) {
		its->invalid = true;
		return SIM_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	if (!own) {
		SIM_TRY(sim_capture_join(stream, its));
		stream->ntips = 0;
	}
	return add_tips(stream, event->tips, event->ntips);
}

static CUresult info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **deps,
	const struct sim_edge **edges, size_t *ndeps)
{
	CUstream stream;

	SIM_TRY(sim_capture_info(handle, &stream, status));
	if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return CUDA_SUCCESS;
	if (id)
		*id = stream->capture->id;
	if (graph)
		*graph = stream->capture->graph;
	if (deps)
		*deps = stream->tips;
	if (edges)
		*edges = NULL;
	if (ndeps)
		*ndeps = stream->ntips;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	SIM_ENTER(cuStreamGetCaptureInfo);
	return info(stream, status, id, NULL, NULL, NULL, NULL);
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return cuStreamGetCaptureInfo(SIM_PTSZ(stream), status, id);
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **deps, size_t *ndeps)
{
	SIM_ENTER(cuStreamGetCaptureInfo_v2);
	return info(stream, status, id, graph, deps, NULL, ndeps);
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **deps, size_t *ndeps)
{
	return cuStreamGetCaptureInfo_v2(SIM_PTSZ(stream), status, id, graph, deps, ndeps);
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **deps, const struct sim_edge **edges, size_t *ndeps)
{
	SIM_ENTER(cuStreamGetCaptureInfo_v3);
	return info(stream, status, id, graph, deps, edges, ndeps);
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **deps, const struct sim_edge **edges, size_t *ndeps)
{
	return cuStreamGetCaptureInfo_v3(SIM_PTSZ(stream), status, id, graph, deps, edges, ndeps);
}

static CUresult update(CUstream handle, CUgraphNode *deps, size_t ndeps, unsigned int flags)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!stream->capture)
		return SIM_ERROR_ILLEGAL_STATE;
	if (flags > 1 || (ndeps && !deps))
		return CUDA_ERROR_INVALID_VALUE;
	return flags ? sim_capture_set_tips(stream, deps, ndeps) : add_tips(stream, deps, ndeps);
}

SIM_EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *deps, size_t ndeps, unsigned int flags)
{
	SIM_ENTER(cuStreamUpdateCaptureDependencies);
	return update(stream, deps, ndeps, flags);
}

SIM_EXPORT CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *deps, size_t ndeps, unsigned int flags)
{
	return cuStreamUpdateCaptureDependencies(SIM_PTSZ(stream), deps, ndeps, flags);
}

SIM_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(
	CUstream stream, CUgraphNode *deps, const struct sim_edge *edges, size_t ndeps, unsigned int flags)
{
	SIM_ENTER(cuStreamUpdateCaptureDependencies_v2);
	(void)edges;
	return update(stream, deps, ndeps, flags);
}

SIM_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(
	CUstream stream, CUgraphNode *deps, const struct sim_edge *edges, size_t ndeps, unsigned int flags)
{
	return cuStreamUpdateCaptureDependencies_v2(SIM_PTSZ(stream), deps, edges, ndeps, flags);
}
