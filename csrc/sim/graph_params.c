/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading and changing the parameters of nodes.
 */
#include "graph.h"

static CUresult node_of(CUgraphNode node, int type)
{
	return sim_handle_is(node, SIM_NODE) && node->payload.type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_kernel(CUgraphNode node, sim_kernel_params_v1 *p)
{
	SIM_TRY(node_of(node, SIM_NODE_KERNEL));
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	const struct sim_launch *l = &node->payload.kernel;
	*p = (sim_kernel_params_v1){ l->func, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2],
		l->shared_bytes, l->params, NULL };
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode node, sim_kernel_params_v1 *p)
{
	SIM_ENTER(cuGraphKernelNodeGetParams);
	return get_kernel(node, p);
}

SIM_EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, sim_kernel_params *p)
{
	SIM_ENTER(cuGraphKernelNodeGetParams_v2);
	SIM_TRY(get_kernel(node, (sim_kernel_params_v1 *)p));
	p->kern = NULL;
	p->ctx = node->payload.kernel.func->ctx;
	return CUDA_SUCCESS;
}

static CUresult set_kernel(CUgraphNode node, const sim_kernel_params_v1 *p)
{
	struct sim_payload fresh = { 0 };

	SIM_TRY(node_of(node, SIM_NODE_KERNEL));
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_launch launch = { NULL, { p->gridDimX, p->gridDimY, p->gridDimZ }, { p->blockDimX, p->blockDimY, p->blockDimZ },
		p->sharedMemBytes, p->kernelParams, p->extra };
	SIM_TRY(sim_function(p->func, &launch.func));
	CUresult result = sim_payload_kernel(&fresh, &launch);
	if (result) {
		sim_payload_clear(&fresh);
		return result;
	}
	sim_payload_clear(&node->payload);
	node->payload = fresh;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const sim_kernel_params_v1 *p)
{
	SIM_ENTER(cuGraphKernelNodeSetParams);
	return set_kernel(node, p);
}

SIM_EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const sim_kernel_params *p)
{
	SIM_ENTER(cuGraphKernelNodeSetParams_v2);
	return set_kernel(node, (const sim_kernel_params_v1 *)p);
}

SIM_EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, sim_memset_params *p)
{
	SIM_ENTER(cuGraphMemsetNodeGetParams);
	SIM_TRY(node_of(node, SIM_NODE_MEMSET));
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	*p = node->payload.fill;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const sim_memset_params *p)
{
	SIM_ENTER(cuGraphMemsetNodeSetParams);
	SIM_TRY(node_of(node, SIM_NODE_MEMSET));
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_memset_check(p));
	node->payload.fill = *p;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, sim_memcpy3d *p)
{
	SIM_ENTER(cuGraphMemcpyNodeGetParams);
	SIM_TRY(node_of(node, SIM_NODE_MEMCPY));
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	*p = node->payload.copy.params;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const sim_memcpy3d *p)
{
	SIM_ENTER(cuGraphMemcpyNodeSetParams);
	SIM_TRY(node_of(node, SIM_NODE_MEMCPY));
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_copy copy = { *p, (uint64_t)p->WidthInBytes * p->Height * p->Depth };
	SIM_TRY(sim_copy_check(&copy));
	node->payload.copy = copy;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphHostNodeGetParams(CUgraphNode node, sim_host_params *p)
{
	SIM_ENTER(cuGraphHostNodeGetParams);
	SIM_TRY(node_of(node, SIM_NODE_HOST));
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	*p = node->payload.host;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode node, const sim_host_params *p)
{
	SIM_ENTER(cuGraphHostNodeSetParams);
	SIM_TRY(node_of(node, SIM_NODE_HOST));
	if (!p || !p->fn)
		return CUDA_ERROR_INVALID_VALUE;
	node->payload.host = *p;
	return CUDA_SUCCESS;
}

static CUresult get_event(CUgraphNode node, int type, CUevent *event)
{
	SIM_TRY(node_of(node, type));
	if (!event)
		return CUDA_ERROR_INVALID_VALUE;
	*event = node->payload.event;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event)
{
	SIM_ENTER(cuGraphEventRecordNodeGetEvent);
	return get_event(node, SIM_NODE_EVENT_RECORD, event);
}

SIM_EXPORT CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *event)
{
	SIM_ENTER(cuGraphEventWaitNodeGetEvent);
	return get_event(node, SIM_NODE_WAIT_EVENT, event);
}

SIM_EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	SIM_ENTER(cuGraphMemAllocNodeGetParams);
	SIM_TRY(node_of(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC));
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	*p = (CUDA_MEM_ALLOC_NODE_PARAMS){ .bytesize = node->payload.memory.bytes, .dptr = node->payload.memory.addr };
	p->poolProps.allocType = 1;
	p->poolProps.location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_DEVICE, node->payload.memory.device };
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *dptr)
{
	SIM_ENTER(cuGraphMemFreeNodeGetParams);
	SIM_TRY(node_of(node, CU_GRAPH_NODE_TYPE_MEM_FREE));
	if (!dptr)
		return CUDA_ERROR_INVALID_VALUE;
	*dptr = node->payload.memory.addr;
	return CUDA_SUCCESS;
}
