/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes that allocate and free memory, added to graphs by hand.  (Captured ones: hook_pool.c, hook_memory.c.)  A node
 * that does not fit the quota is not added.
 */
#include "shim.h"

struct addition {
	struct gl_gpu *gpu; /* NULL: not a node that allocates device memory */
	uint64_t bytes, need;
};

/* Takes pool_lock if gpu is set, until `added`.  False: the quota refuses.  For a node that the driver would refuse,
 * the driver returns the error, not the quota.  If the driver accepts it after all, the launch is charged. */
static bool before_adding(struct addition *add, CUgraph graph, const CUgraphNode *node,
			  const CUDA_MEM_ALLOC_NODE_PARAMS *np)
{
	*add = (struct addition){.gpu = NULL};
	if (!graph || !node || !np || !np->bytesize || np->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    np->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return true;
	struct gl_gpu *gpu = gl_gpu_of(np->poolProps.location.id);
	if (!gpu)
		return true;
	gl_lock(&gpu->pool_lock);
	*add = (struct addition){gpu, np->bytesize, gl_graph_memory_need(gpu, graph, np->bytesize)};
	if (gl_graph_memory_prepare(gpu, graph, false) == 0 && gl_reserve(gpu, GL_MEM_GRAPH, add->need) == 0) {
		gl_in_flight_begin(gpu);
		return true;
	}
	gl_unlock(&gpu->pool_lock);
	return false;
}

static CUresult added(struct addition *add, CUresult result, CUgraph graph, const CUDA_MEM_ALLOC_NODE_PARAMS *np)
{
	if (!add->gpu)
		return result;
	if (result == CUDA_SUCCESS)
		gl_graph_memory_add(add->gpu, graph, np->dptr, add->bytes, add->need);
	else
		gl_uncharge(add->gpu, GL_MEM_GRAPH, add->need);
	gl_in_flight_end(add->gpu);
	gl_unlock(&add->gpu->pool_lock);
	return result;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps,
				CUDA_MEM_ALLOC_NODE_PARAMS *np)
{
	GL_ENTER(cuGraphAddMemAllocNode, (node, graph, deps, ndeps, np));
	struct addition add;
	if (!before_adding(&add, graph, node, np))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return added(&add, REAL(cuGraphAddMemAllocNode)(node, graph, deps, ndeps, np), graph, np);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps,
			       CUdeviceptr dptr)
{
	GL_ENTER(cuGraphAddMemFreeNode, (node, graph, deps, ndeps, dptr));
	CUresult result = REAL(cuGraphAddMemFreeNode)(node, graph, deps, ndeps, dptr);
	if (result == CUDA_SUCCESS)
		gl_graph_memory_freed(graph, dptr);
	return result;
}

static const CUDA_MEM_ALLOC_NODE_PARAMS *allocation(const CUgraphNodeParams *np)
{
	return np && np->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? &np->alloc : NULL;
}

static CUresult added_any(struct addition *add, CUresult result, CUgraph graph, const CUgraphNodeParams *np)
{
	result = added(add, result, graph, allocation(np));
	if (result != CUDA_SUCCESS)
		return result;
	if (np->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		gl_graph_memory_freed(graph, np->free.dptr);
	else if (np->type == CU_GRAPH_NODE_TYPE_GRAPH && np->child.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
		gl_graph_memory_moved(np->child.graph, graph);
	return result;
}

#define ADDING(name, params, args)                                                                                     \
	CUresult name params                                                                                           \
	{                                                                                                              \
		GL_ENTER(name, args);                                                                                  \
		struct addition add;                                                                                   \
		if (!before_adding(&add, graph, node, allocation(np)))                                                       \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		return added_any(&add, REAL(name) args, graph, np);                                                    \
	}

ADDING(cuGraphAddNode, (CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUgraphNodeParams *np),
       (node, graph, deps, ndeps, np))
ADDING(cuGraphAddNode_v2,
       (CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges, size_t ndeps, CUgraphNodeParams *np),
       (node, graph, deps, edges, ndeps, np))
ADDING(cuGraphAddNode_v3,
       (CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges, size_t ndeps, CUgraphNodeParams *np),
       (node, graph, deps, edges, ndeps, np))
