/* SPDX-License-Identifier: Apache-2.0
 *
 * Changing an executable graph: as a whole from another graph, or node by node.
 */
#include "graph.h"

enum { UPDATE_SUCCESS, UPDATE_ERROR, UPDATE_TOPOLOGY, UPDATE_NODE_TYPE };

static int compare(CUgraphExec exec, CUgraphExec fresh, CUgraphNode *error)
{
	if (exec->nsteps != fresh->nsteps)
		return UPDATE_TOPOLOGY;
	for (size_t i = 0; i < exec->nsteps; i++) {
		int type = exec->steps[i].payload.type;
		*error = fresh->steps[i].origin;
		if (type != fresh->steps[i].payload.type)
			return UPDATE_NODE_TYPE;
		if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE)
			return UPDATE_ERROR;
	}
	*error = NULL;
	return UPDATE_SUCCESS;
}

static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphNode *error, int *outcome)
{
	CUgraphExec fresh = NULL;

	*error = NULL;
	if (!sim_handle_is(exec, SIM_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_exec_new(&fresh, graph, exec->flags));
	*outcome = compare(exec, fresh, error);
	if (*outcome == UPDATE_SUCCESS) {
		struct sim_step *steps = exec->steps;
		exec->steps = fresh->steps;
		fresh->steps = steps;
	}
	sim_exec_free(fresh);
	return *outcome == UPDATE_SUCCESS ? CUDA_SUCCESS : SIM_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

SIM_EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, CUgraphExecUpdateResult *result)
{
	SIM_ENTER(cuGraphExecUpdate);
	CUgraphNode error;
	int outcome = UPDATE_ERROR;

	CUresult rc = update(exec, graph, &error, &outcome);
	if (error_node)
		*error_node = error;
	if (result)
		*result = outcome;
	return rc;
}

SIM_EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, struct sim_update_info *info)
{
	SIM_ENTER(cuGraphExecUpdate_v2);
	CUgraphNode error;
	int outcome = UPDATE_ERROR;

	CUresult rc = update(exec, graph, &error, &outcome);
	if (info)
		*info = (struct sim_update_info){ .result = outcome, .errorNode = error };
	return rc;
}

static struct sim_payload *payload_of(CUgraphExec exec, CUgraphNode node, int type)
{
	if (!sim_handle_is(exec, SIM_EXEC))
		return NULL;
	for (size_t i = 0; i < exec->nsteps; i++)
		if (exec->steps[i].origin == node && (type < 0 || exec->steps[i].payload.type == type))
			return &exec->steps[i].payload;
	return NULL;
}

static CUresult set_kernel(CUgraphExec exec, CUgraphNode node, const sim_kernel_params_v1 *p)
{
	struct sim_payload *payload = payload_of(exec, node, SIM_NODE_KERNEL), fresh = { 0 };

	if (!payload || !p)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_launch launch = { NULL, { p->gridDimX, p->gridDimY, p->gridDimZ }, { p->blockDimX, p->blockDimY, p->blockDimZ },
		p->sharedMemBytes, p->kernelParams, p->extra };
	SIM_TRY(sim_function(p->func, &launch.func));
	CUresult result = sim_payload_kernel(&fresh, &launch);
	sim_payload_clear(result ? &fresh : payload);
	if (!result)
		*payload = fresh;
	return result;
}

SIM_EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const sim_kernel_params_v1 *p)
{
	SIM_ENTER(cuGraphExecKernelNodeSetParams);
	return set_kernel(exec, node, p);
}

SIM_EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const sim_kernel_params *p)
{
	SIM_ENTER(cuGraphExecKernelNodeSetParams_v2);
	return set_kernel(exec, node, (const sim_kernel_params_v1 *)p);
}

SIM_EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled)
{
	SIM_ENTER(cuGraphNodeSetEnabled);
	struct sim_payload *payload = payload_of(exec, node, -1);

	if (!payload || payload->type > SIM_NODE_MEMSET)
		return CUDA_ERROR_INVALID_VALUE;
	payload->disabled = !enabled;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled)
{
	SIM_ENTER(cuGraphNodeGetEnabled);
	struct sim_payload *payload = payload_of(exec, node, -1);

	if (!payload || !enabled)
		return CUDA_ERROR_INVALID_VALUE;
	*enabled = !payload->disabled;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const sim_memset_params *p, CUcontext ctx)
{
	SIM_ENTER(cuGraphExecMemsetNodeSetParams);
	struct sim_payload *payload = payload_of(exec, node, SIM_NODE_MEMSET);

	(void)ctx;
	if (!payload || !p)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_memset_check(p));
	payload->fill = *p;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const sim_memcpy3d *p, CUcontext ctx)
{
	SIM_ENTER(cuGraphExecMemcpyNodeSetParams);
	struct sim_payload *payload = payload_of(exec, node, SIM_NODE_MEMCPY);

	(void)ctx;
	if (!payload || !p)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_copy copy = { *p, (uint64_t)p->WidthInBytes * p->Height * p->Depth };
	SIM_TRY(sim_copy_check(&copy));
	payload->copy = copy;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const sim_host_params *p)
{
	SIM_ENTER(cuGraphExecHostNodeSetParams);
	struct sim_payload *payload = payload_of(exec, node, SIM_NODE_HOST);

	if (!payload || !p || !p->fn)
		return CUDA_ERROR_INVALID_VALUE;
	payload->host = *p;
	return CUDA_SUCCESS;
}
