/* SPDX-License-Identifier: Apache-2.0
 *
 * Executable graphs.  A launch is charged by the measured time of the graph's earlier launches.  An update of the graph
 * may change that time.
 */
#include "shim.h"
#include "time/launch.h"
#include "time/types.h"

static uint64_t key_of(CUgraphExec exec)
{
	return gl_key_mix((uintptr_t)exec, UINT64_C(0x6772617068)); /* distinguishes graphs from functions */
}

#define LAUNCH_HOOK(name, per_thread)                                                                        \
	CUresult name(CUgraphExec exec, CUstream stream)                                                     \
	{                                                                                                    \
		GL_ENTER(name, (exec, stream));                                                              \
		struct gl_graph_launch memory;                                                               \
		struct gl_launch launch;                                                                     \
		if (GL_UNLIKELY(!gl_graph_memory_launch_begin(exec, &memory)))                               \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                     \
		CUresult result = gl_launch_begin(&launch, GL_GRAPH, key_of(exec), stream, per_thread);      \
		if (result == CUDA_SUCCESS)                                                                  \
			result = gl_launch_end(&launch, REAL(name)(exec, stream));                           \
		gl_graph_memory_launch_end(exec, &memory, false, result);                                    \
		return result;                                                                               \
	}

LAUNCH_HOOK(cuGraphLaunch, false)
LAUNCH_HOOK(cuGraphLaunch_ptsz, true)

/* Instantiating uploads code and parameters to the card. */
static void uploaded(void)
{
	struct gl_gpu *gpu = gl_gpu_current();
	if (gpu)
		gl_overhead_mark(gpu);
}

static CUresult instantiated(CUgraph graph, const CUgraphExec *exec, unsigned long long flags, CUresult result)
{
	if (result != CUDA_SUCCESS || !exec)
		return result;
	uploaded();
	gl_cost_forget(key_of(*exec));
	gl_graph_memory_instantiated(graph, *exec, flags);
	return result;
}

static CUresult updated(CUgraphExec exec, CUresult result)
{
	gl_cost_forget(key_of(exec));
	uploaded();
	return result;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size)
{
	GL_ENTER(cuGraphInstantiate, (exec, graph, error_node, log, log_size));
	return instantiated(graph, exec, 0, REAL(cuGraphInstantiate)(exec, graph, error_node, log, log_size));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size)
{
	GL_ENTER(cuGraphInstantiate_v2, (exec, graph, error_node, log, log_size));
	return instantiated(graph, exec, 0, REAL(cuGraphInstantiate_v2)(exec, graph, error_node, log, log_size));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	GL_ENTER(cuGraphInstantiateWithFlags, (exec, graph, flags));
	return instantiated(graph, exec, flags, REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *ip)
{
	GL_ENTER(cuGraphInstantiateWithParams, (exec, graph, ip));
	return instantiated(graph, exec, ip ? ip->flags : 0, REAL(cuGraphInstantiateWithParams)(exec, graph, ip));
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *ip)
{
	GL_ENTER(cuGraphInstantiateWithParams_ptsz, (exec, graph, ip));
	return instantiated(graph, exec, ip ? ip->flags : 0, REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, ip));
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, CUgraphExecUpdateResult *result)
{
	GL_ENTER(cuGraphExecUpdate, (exec, graph, error_node, result));
	return updated(exec, REAL(cuGraphExecUpdate)(exec, graph, error_node, result));
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	GL_ENTER(cuGraphExecUpdate_v2, (exec, graph, info));
	return updated(exec, REAL(cuGraphExecUpdate_v2)(exec, graph, info));
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	GL_ENTER(cuGraphExecDestroy, (exec));
	CUresult result = REAL(cuGraphExecDestroy)(exec);
	if (result == CUDA_SUCCESS)
		gl_graph_memory_exec_forget(exec);
	return updated(exec, result);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	GL_ENTER(cuGraphDestroy, (graph));
	CUresult result = REAL(cuGraphDestroy)(graph);
	if (result == CUDA_SUCCESS)
		gl_graph_memory_forget(graph);
	return result;
}

#define UPLOAD_HOOK(name)                                                                                    \
	CUresult name(CUgraphExec exec, CUstream stream)                                                     \
	{                                                                                                    \
		GL_ENTER(name, (exec, stream));                                                              \
		struct gl_graph_launch memory;                                                               \
		if (GL_UNLIKELY(!gl_graph_memory_launch_begin(exec, &memory)))                               \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                     \
		CUresult result = REAL(name)(exec, stream);                                                  \
		gl_graph_memory_launch_end(exec, &memory, true, result);                                     \
		uploaded();                                                                                  \
		return result;                                                                               \
	}

UPLOAD_HOOK(cuGraphUpload)
UPLOAD_HOOK(cuGraphUpload_ptsz)
