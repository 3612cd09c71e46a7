/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs as objects: nodes, edges, clones.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

static uint64_t next_id = 1;

CUgraph sim_graph_new(void)
{
	CUgraph graph = calloc(1, sizeof(*graph));

	if (graph && !sim_handle_add(graph, SIM_GRAPH)) {
		free(graph);
		return NULL;
	}
	if (graph)
		graph->id = next_id++;
	return graph;
}

/* Kernel parameters are copied by value, as the caller may change its own right after the call. */
CUresult sim_payload_kernel(struct sim_payload *payload, const struct sim_launch *launch)
{
	CUfunction f = launch->func;
	size_t size = 8;
	const char *packed = NULL;

	for (int i = 0; i < f->nparams; i++)
		size += (size_t)f->param_size[i] + 8;
	for (void **e = launch->extra; e && *e; e += 2)
		if (*e == (void *)1)
			packed = e[1];
	payload->type = SIM_NODE_KERNEL;
	payload->kernel = *launch;
	payload->kernel.extra = NULL;
	payload->kernel.params = calloc((size_t)f->nparams + 1, sizeof(void *));
	payload->values = calloc(1, size);
	if (!payload->kernel.params || !payload->values)
		return CUDA_ERROR_OUT_OF_MEMORY;
	char *at = payload->values;
	for (int i = 0; i < f->nparams; i++) {
		const void *from = launch->params ? launch->params[i] : packed ? packed + f->param_offset[i] : NULL;
		if (from)
			memcpy(at, from, f->param_size[i]);
		payload->kernel.params[i] = at;
		at += (f->param_size[i] + 7) / 8 * 8;
	}
	return CUDA_SUCCESS;
}

void sim_payload_clear(struct sim_payload *payload)
{
	free(payload->kernel.params);
	free(payload->values);
	payload->kernel.params = NULL;
	payload->values = NULL;
	if (payload->child)
		sim_graph_free(payload->child);
	payload->child = NULL;
}

CUresult sim_payload_copy(struct sim_payload *to, const struct sim_payload *from)
{
	*to = *from;
	to->kernel.params = NULL;
	to->values = NULL;
	to->child = NULL;
	if (from->type == SIM_NODE_KERNEL)
		return sim_payload_kernel(to, &from->kernel);
	if (from->child && !(to->child = sim_graph_clone(from->child)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

static void free_node(CUgraphNode node)
{
	sim_handle_drop(node);
	sim_payload_clear(&node->payload);
	free(node->deps);
	free(node);
}

void sim_graph_free(CUgraph graph)
{
	for (size_t i = 0; i < graph->nnodes; i++)
		free_node(graph->nodes[i]);
	free(graph->nodes);
	sim_handle_drop(graph);
	free(graph);
}

static bool make_room(CUgraph graph)
{
	if (graph->nnodes < graph->capacity)
		return true;
	size_t more = graph->capacity ? graph->capacity * 2 : 16;
	CUgraphNode *bigger = realloc(graph->nodes, more * sizeof(CUgraphNode));
	if (!bigger)
		return false;
	graph->nodes = bigger;
	graph->capacity = more;
	return true;
}

CUresult sim_graph_add(CUgraph graph, const CUgraphNode *deps, size_t ndeps, struct sim_payload *payload, CUgraphNode *out)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUgraphNode node = NULL;

	if (!sim_handle_is(graph, SIM_GRAPH) || (ndeps && !deps))
		goto fail;
	for (size_t i = 0; i < ndeps; i++)
		if (!sim_handle_is(deps[i], SIM_NODE) || deps[i]->graph != graph)
			goto fail;
	result = CUDA_ERROR_OUT_OF_MEMORY;
	node = calloc(1, sizeof(*node));
	if (!node || !make_room(graph) || !sim_handle_add(node, SIM_NODE))
		goto fail;
	if (ndeps) {
		node->deps = malloc(ndeps * sizeof(CUgraphNode));
		if (!node->deps)
			goto fail;
		memcpy(node->deps, deps, ndeps * sizeof(CUgraphNode));
	}
	node->ndeps = ndeps;
	node->graph = graph;
	node->id = next_id++;
	node->payload = *payload;
	graph->nodes[graph->nnodes++] = node;
	graph->has_memory |= payload->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || payload->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
	*out = node;
	return CUDA_SUCCESS;
fail:
	sim_handle_drop(node);
	free(node);
	sim_payload_clear(payload);
	return result;
}

static bool depends(CUgraphNode node, CUgraphNode on, uint64_t round)
{
	if (node == on)
		return true;
	if (node->seen == round)
		return false;
	node->seen = round;
	for (size_t i = 0; i < node->ndeps; i++)
		if (depends(node->deps[i], on, round))
			return true;
	return false;
}

bool sim_node_depends(CUgraphNode node, CUgraphNode on)
{
	static uint64_t round;

	return depends(node, on, ++round);
}

static size_t index_in(CUgraph graph, CUgraphNode node)
{
	size_t i = 0;

	while (i < graph->nnodes && graph->nodes[i] != node)
		i++;
	return i;
}

CUgraph sim_graph_clone(CUgraph graph)
{
	CUgraph clone = sim_graph_new();
	CUgraphNode node;

	for (size_t i = 0; clone && i < graph->nnodes; i++) {
		struct sim_payload payload;
		if (sim_payload_copy(&payload, &graph->nodes[i]->payload) || sim_graph_add(clone, NULL, 0, &payload, &node)) {
			sim_graph_free(clone);
			return NULL;
		}
		node->clone_of = graph->nodes[i];
	}
	for (size_t i = 0; clone && i < graph->nnodes; i++) { /* edges last: they may point forward */
		CUgraphNode from = graph->nodes[i], to = clone->nodes[i];
		to->deps = from->ndeps ? calloc(from->ndeps, sizeof(CUgraphNode)) : NULL;
		for (size_t k = 0; to->deps && k < from->ndeps; k++)
			to->deps[to->ndeps++] = clone->nodes[index_in(graph, from->deps[k])];
	}
	return clone;
}

SIM_EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	SIM_ENTER(cuGraphCreate);
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraph made = sim_graph_new();
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*graph = made;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
	SIM_ENTER(cuGraphDestroy);
	if (!sim_handle_is(graph, SIM_GRAPH) || graph->owned)
		return CUDA_ERROR_INVALID_VALUE;
	sim_graph_free(graph);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphClone(CUgraph *out, CUgraph graph)
{
	SIM_ENTER(cuGraphClone);
	if (!out || !sim_handle_is(graph, SIM_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	if (graph->has_memory)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUgraph clone = sim_graph_clone(graph);
	if (!clone)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = clone;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode node, CUgraph clone)
{
	SIM_ENTER(cuGraphNodeFindInClone);
	if (!out || !sim_handle_is(clone, SIM_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < clone->nnodes; i++) {
		if (clone->nodes[i]->clone_of != node)
			continue;
		*out = clone->nodes[i];
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGraphDestroyNode(CUgraphNode node)
{
	SIM_ENTER(cuGraphDestroyNode);
	if (!sim_handle_is(node, SIM_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	CUgraph graph = node->graph;
	if (node->payload.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->payload.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		return CUDA_ERROR_NOT_SUPPORTED;
	for (size_t i = 0; i < graph->nnodes; i++) {
		CUgraphNode other = graph->nodes[i];
		size_t kept = 0;
		for (size_t k = 0; k < other->ndeps; k++)
			if (other->deps[k] != node)
				other->deps[kept++] = other->deps[k];
		other->ndeps = kept;
	}
	size_t at = index_in(graph, node);
	memmove(&graph->nodes[at], &graph->nodes[at + 1], (graph->nnodes - at - 1) * sizeof(CUgraphNode));
	graph->nnodes--;
	free_node(node);
	return CUDA_SUCCESS;
}
