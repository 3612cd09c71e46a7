/* SPDX-License-Identifier: Apache-2.0
 *
 * Adding nodes of every kind, and reading and changing their parameters.
 */
#include <string.h>

#include "graph.h"

/* Add a checked payload; the node handle is told only on success. */
static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t ndeps, struct sim_payload *payload)
{
	CUgraphNode node;

	if (!out) {
		sim_payload_clear(payload);
		return CUDA_ERROR_INVALID_VALUE;
	}
	SIM_TRY(sim_graph_add(graph, deps, ndeps, payload, &node));
	*out = node;
	return CUDA_SUCCESS;
}

static CUresult kernel_payload(struct sim_payload *payload, const sim_kernel_params *p, bool with_kernel)
{
	struct sim_launch launch = { NULL, { p->gridDimX, p->gridDimY, p->gridDimZ }, { p->blockDimX, p->blockDimY, p->blockDimZ },
		p->sharedMemBytes, p->kernelParams, p->extra };
	CUfunction f = p->func;

	if (!f && with_kernel)
		f = (CUfunction)p->kern;
	SIM_TRY(sim_function(f, &launch.func));
	if (!p->gridDimX || !p->gridDimY || !p->gridDimZ || !p->blockDimX || !p->blockDimY || !p->blockDimZ)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_payload_kernel(payload, &launch);
}

static CUresult add_kernel(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, const sim_kernel_params *p, bool with_kernel)
{
	struct sim_payload payload = { 0 };

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(kernel_payload(&payload, p, with_kernel));
	return add(node, graph, deps, ndeps, &payload);
}

SIM_EXPORT CUresult cuGraphAddKernelNode_v2(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, const sim_kernel_params *p)
{
	SIM_ENTER(cuGraphAddKernelNode_v2);
	return add_kernel(node, graph, deps, ndeps, p, true);
}

SIM_EXPORT CUresult cuGraphAddKernelNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, const sim_kernel_params_v1 *p)
{
	SIM_ENTER(cuGraphAddKernelNode);
	return add_kernel(node, graph, deps, ndeps, (const sim_kernel_params *)p, false);
}

static CUresult memset_payload(struct sim_payload *payload, const sim_memset_params *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_memset_check(p));
	payload->type = SIM_NODE_MEMSET;
	payload->fill = *p;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphAddMemsetNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, const sim_memset_params *p, CUcontext ctx)
{
	SIM_ENTER(cuGraphAddMemsetNode);
	struct sim_payload payload = { 0 };

	(void)ctx;
	SIM_TRY(memset_payload(&payload, p));
	return add(node, graph, deps, ndeps, &payload);
}

static CUresult copy_payload(struct sim_payload *payload, const sim_memcpy3d *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	payload->type = SIM_NODE_MEMCPY;
	payload->copy.params = *p;
	payload->copy.bytes = (uint64_t)p->WidthInBytes * p->Height * p->Depth;
	return sim_copy_check(&payload->copy);
}

SIM_EXPORT CUresult cuGraphAddMemcpyNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, const sim_memcpy3d *p, CUcontext ctx)
{
	SIM_ENTER(cuGraphAddMemcpyNode);
	struct sim_payload payload = { 0 };

	(void)ctx;
	SIM_TRY(copy_payload(&payload, p));
	return add(node, graph, deps, ndeps, &payload);
}

static CUresult host_payload(struct sim_payload *payload, const sim_host_params *p)
{
	if (!p || !p->fn)
		return CUDA_ERROR_INVALID_VALUE;
	payload->type = SIM_NODE_HOST;
	payload->host = *p;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphAddHostNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, const sim_host_params *p)
{
	SIM_ENTER(cuGraphAddHostNode);
	struct sim_payload payload = { 0 };

	SIM_TRY(host_payload(&payload, p));
	return add(node, graph, deps, ndeps, &payload);
}

static CUresult child_payload(struct sim_payload *payload, CUgraph child)
{
	if (!sim_handle_is(child, SIM_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	payload->type = CU_GRAPH_NODE_TYPE_GRAPH;
	payload->child = sim_graph_clone(child);
	if (!payload->child)
		return CUDA_ERROR_OUT_OF_MEMORY;
	payload->child->owned = true;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphAddChildGraphNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUgraph child)
{
	SIM_ENTER(cuGraphAddChildGraphNode);
	struct sim_payload payload = { 0 };

	SIM_TRY(child_payload(&payload, child));
	return add(node, graph, deps, ndeps, &payload);
}

SIM_EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	SIM_ENTER(cuGraphChildGraphNodeGetGraph);
	if (!graph || !sim_handle_is(node, SIM_NODE) || node->payload.type != CU_GRAPH_NODE_TYPE_GRAPH)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = node->payload.child;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps)
{
	SIM_ENTER(cuGraphAddEmptyNode);
	return add(node, graph, deps, ndeps, &(struct sim_payload){ .type = SIM_NODE_EMPTY });
}

static CUresult event_payload(struct sim_payload *payload, int type, CUevent event)
{
	if (!sim_handle_is(event, SIM_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	payload->type = type;
	payload->event = event;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphAddEventRecordNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUevent event)
{
	SIM_ENTER(cuGraphAddEventRecordNode);
	struct sim_payload payload = { 0 };

	SIM_TRY(event_payload(&payload, SIM_NODE_EVENT_RECORD, event));
	return add(node, graph, deps, ndeps, &payload);
}

SIM_EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUevent event)
{
	SIM_ENTER(cuGraphAddEventWaitNode);
	struct sim_payload payload = { 0 };

	SIM_TRY(event_payload(&payload, SIM_NODE_WAIT_EVENT, event));
	return add(node, graph, deps, ndeps, &payload);
}

static CUresult alloc_payload(struct sim_payload *payload, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	if (!p || !p->bytesize || p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(p->poolProps.location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	payload->type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
	payload->memory.bytes = p->bytesize;
	payload->memory.device = p->poolProps.location.id;
	return sim_graph_memory_plan(payload->memory.device, p->bytesize, &payload->memory.addr);
}

static CUresult add_alloc(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	struct sim_payload payload = { 0 };

	SIM_TRY(alloc_payload(&payload, p));
	SIM_TRY(add(node, graph, deps, ndeps, &payload));
	p->dptr = payload.memory.addr;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphAddMemAllocNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	SIM_ENTER(cuGraphAddMemAllocNode);
	return add_alloc(node, graph, deps, ndeps, p);
}

SIM_EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUdeviceptr dptr)
{
	SIM_ENTER(cuGraphAddMemFreeNode);
	struct sim_payload payload = { .type = CU_GRAPH_NODE_TYPE_MEM_FREE };

	if (!dptr)
		return CUDA_ERROR_INVALID_VALUE;
	payload.memory.addr = dptr;
	return add(node, graph, deps, ndeps, &payload);
}

/* One call for every kind of node; the payload of the parameters starts where the union does. */
static CUresult add_any(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUgraphNodeParams *p)
{
	struct sim_payload payload = { 0 };

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	const void *body = p->reserved1;
	switch (p->type) {
	case SIM_NODE_KERNEL: return add_kernel(node, graph, deps, ndeps, body, true);
	case SIM_NODE_MEMCPY: SIM_TRY(copy_payload(&payload, &((const sim_memcpy_params *)body)->copyParams)); break;
	case SIM_NODE_MEMSET: SIM_TRY(memset_payload(&payload, body)); break;
	case SIM_NODE_HOST: SIM_TRY(host_payload(&payload, body)); break;
	case CU_GRAPH_NODE_TYPE_GRAPH: SIM_TRY(child_payload(&payload, *(CUgraph const *)body)); break;
	case SIM_NODE_EMPTY: payload.type = SIM_NODE_EMPTY; break;
	case SIM_NODE_WAIT_EVENT:
	case SIM_NODE_EVENT_RECORD: SIM_TRY(event_payload(&payload, p->type, *(CUevent const *)body)); break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return add_alloc(node, graph, deps, ndeps, &p->alloc);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		payload.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
		payload.memory.addr = p->free.dptr;
		break;
	default: return CUDA_ERROR_NOT_SUPPORTED;
	}
	return add(node, graph, deps, ndeps, &payload);
}

SIM_EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUgraphNodeParams *p)
{
	SIM_ENTER(cuGraphAddNode);
	return add_any(node, graph, deps, ndeps, p);
}

SIM_EXPORT CUresult cuGraphAddNode_v2(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const struct sim_edge *edges, size_t ndeps, CUgraphNodeParams *p)
{
	SIM_ENTER(cuGraphAddNode_v2);
	(void)edges;
	return add_any(node, graph, deps, ndeps, p);
}

SIM_EXPORT CUresult cuGraphAddNode_v3(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const struct sim_edge *edges, size_t ndeps, CUgraphNodeParams *p)
{
	SIM_ENTER(cuGraphAddNode_v3);
	(void)edges;
	return add_any(node, graph, deps, ndeps, p);
}
