/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a graph: its nodes and edges; and changing its edges.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

/* The size protocol: without an array only the number is told; what there is no node for is NULL. */
static void give(CUgraphNode *out, size_t room, size_t *at, CUgraphNode node)
{
	if (out && *at < room)
		out[*at] = node;
	++*at;
}

static CUresult finish(CUgraphNode *out, size_t *count, size_t found)
{
	for (size_t i = found; out && i < *count; i++)
		out[i] = NULL;
	*count = out && found > *count ? *count : found;
	return CUDA_SUCCESS;
}

static CUresult list_nodes(CUgraph graph, CUgraphNode *out, size_t *count, bool roots)
{
	size_t found = 0;

	if (!count || !sim_handle_is(graph, SIM_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < graph->nnodes; i++)
		if (!roots || !graph->nodes[i]->ndeps)
			give(out, *count, &found, graph->nodes[i]);
	return finish(out, count, found);
}

SIM_EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	SIM_ENTER(cuGraphGetNodes);
	return list_nodes(graph, nodes, count, false);
}

SIM_EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	SIM_ENTER(cuGraphGetRootNodes);
	return list_nodes(graph, nodes, count, true);
}

static CUresult list_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, struct sim_edge *data, size_t *count)
{
	size_t found = 0, same = 0;

	if (!count || !sim_handle_is(graph, SIM_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < graph->nnodes; i++) {
		for (size_t k = 0; k < graph->nodes[i]->ndeps; k++) {
			give(from, *count, &found, graph->nodes[i]->deps[k]);
			give(to, *count, &same, graph->nodes[i]);
		}
	}
	if (data && from)
		memset(data, 0, sizeof(*data) * (*count < found ? *count : found));
	if (!from)
		*count = found;
	else
		*count = found < *count ? found : *count;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	SIM_ENTER(cuGraphGetEdges);
	return list_edges(graph, from, to, NULL, count);
}

SIM_EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, struct sim_edge *data, size_t *count)
{
	SIM_ENTER(cuGraphGetEdges_v2);
	return list_edges(graph, from, to, data, count);
}

static CUresult list_dependencies(CUgraphNode node, CUgraphNode *out, struct sim_edge *data, size_t *count)
{
	size_t found = 0;

	if (!count || !sim_handle_is(node, SIM_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t k = 0; k < node->ndeps; k++)
		give(out, *count, &found, node->deps[k]);
	if (data && out)
		memset(data, 0, sizeof(*data) * (*count < found ? *count : found));
	return finish(out, count, found);
}

SIM_EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *out, size_t *count)
{
	SIM_ENTER(cuGraphNodeGetDependencies);
	return list_dependencies(node, out, NULL, count);
}

SIM_EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *out, struct sim_edge *data, size_t *count)
{
	SIM_ENTER(cuGraphNodeGetDependencies_v2);
	return list_dependencies(node, out, data, count);
}

static CUresult list_dependents(CUgraphNode node, CUgraphNode *out, struct sim_edge *data, size_t *count)
{
	size_t found = 0;

	if (!count || !sim_handle_is(node, SIM_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < node->graph->nnodes; i++)
		for (size_t k = 0; k < node->graph->nodes[i]->ndeps; k++)
			if (node->graph->nodes[i]->deps[k] == node)
				give(out, *count, &found, node->graph->nodes[i]);
	if (data && out)
		memset(data, 0, sizeof(*data) * (*count < found ? *count : found));
	return finish(out, count, found);
}

SIM_EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *out, size_t *count)
{
	SIM_ENTER(cuGraphNodeGetDependentNodes);
	return list_dependents(node, out, NULL, count);
}

SIM_EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *out, struct sim_edge *data, size_t *count)
{
	SIM_ENTER(cuGraphNodeGetDependentNodes_v2);
	return list_dependents(node, out, data, count);
}

static CUresult add_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	if (!sim_handle_is(graph, SIM_GRAPH) || (count && (!from || !to)))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (!sim_handle_is(from[i], SIM_NODE) || !sim_handle_is(to[i], SIM_NODE) || from[i]->graph != graph ||
			to[i]->graph != graph || sim_node_depends(from[i], to[i]))
			return CUDA_ERROR_INVALID_VALUE;
		CUgraphNode *more = realloc(to[i]->deps, (to[i]->ndeps + 1) * sizeof(CUgraphNode));
		if (!more)
			return CUDA_ERROR_OUT_OF_MEMORY;
		to[i]->deps = more;
		to[i]->deps[to[i]->ndeps++] = from[i];
	}
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	SIM_ENTER(cuGraphAddDependencies);
	return add_edges(graph, from, to, count);
}

SIM_EXPORT CUresult cuGraphAddDependencies_v2(
	CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const struct sim_edge *data, size_t count)
{
	SIM_ENTER(cuGraphAddDependencies_v2);
	(void)data;
	return add_edges(graph, from, to, count);
}

static CUresult remove_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	if (!sim_handle_is(graph, SIM_GRAPH) || (count && (!from || !to)))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		size_t k = 0;
		if (!sim_handle_is(to[i], SIM_NODE))
			return CUDA_ERROR_INVALID_VALUE;
		while (k < to[i]->ndeps && to[i]->deps[k] != from[i])
			k++;
		if (k == to[i]->ndeps)
			return CUDA_ERROR_INVALID_VALUE;
		to[i]->deps[k] = to[i]->deps[--to[i]->ndeps];
	}
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	SIM_ENTER(cuGraphRemoveDependencies);
	return remove_edges(graph, from, to, count);
}

SIM_EXPORT CUresult cuGraphRemoveDependencies_v2(
	CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const struct sim_edge *data, size_t count)
{
	SIM_ENTER(cuGraphRemoveDependencies_v2);
	(void)data;
	return remove_edges(graph, from, to, count);
}

SIM_EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	SIM_ENTER(cuGraphNodeGetType);
	if (!type || !sim_handle_is(node, SIM_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->payload.type;
	return CUDA_SUCCESS;
}
