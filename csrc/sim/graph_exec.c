/* SPDX-License-Identifier: Apache-2.0
 *
 * Executable graphs.  A launch is as few items of work as possible: one for all that lies between host
 * functions and event records.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

enum { AUTO_FREE_ON_LAUNCH = 1 };

static struct sim_step *new_step(CUgraphExec exec)
{
	if (exec->nsteps == exec->capacity) {
		size_t more = exec->capacity ? exec->capacity * 2 : 16;
		struct sim_step *bigger = realloc(exec->steps, more * sizeof(struct sim_step));
		if (!bigger)
			return NULL;
		exec->steps = bigger;
		exec->capacity = more;
	}
	return &exec->steps[exec->nsteps];
}

static CUresult flatten(CUgraphExec exec, CUgraph graph);

static CUresult append(CUgraphExec exec, CUgraphNode node)
{
	if (node->payload.type == CU_GRAPH_NODE_TYPE_GRAPH)
		return flatten(exec, node->payload.child);
	struct sim_step *step = new_step(exec);
	if (!step)
		return CUDA_ERROR_OUT_OF_MEMORY;
	step->origin = node;
	SIM_TRY(sim_payload_copy(&step->payload, &node->payload));
	exec->nsteps++;
	return CUDA_SUCCESS;
}

static size_t place_of(CUgraph graph, CUgraphNode node)
{
	for (size_t i = 0; i < graph->nnodes; i++)
		if (graph->nodes[i] == node)
			return i;
	return graph->nnodes;
}

static bool ready(CUgraph graph, CUgraphNode node, const bool *done)
{
	for (size_t k = 0; k < node->ndeps; k++)
		if (!done[place_of(graph, node->deps[k])])
			return false;
	return true;
}

/* Nodes usually come after what they depend on; a node that does not waits for a later pass. */
static CUresult flatten(CUgraphExec exec, CUgraph graph)
{
	bool *done = calloc(graph->nnodes + 1, sizeof(bool));
	CUresult result = done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	for (size_t left = graph->nnodes; left && !result;) {
		size_t before = left;
		for (size_t i = 0; i < graph->nnodes && !result; i++) {
			if (done[i] || !ready(graph, graph->nodes[i], done))
				continue;
			result = append(exec, graph->nodes[i]);
			done[i] = true;
			left--;
		}
		if (left == before)
			result = CUDA_ERROR_INVALID_VALUE; /* a cycle */
	}
	free(done);
	return result;
}

void sim_exec_free(CUgraphExec exec)
{
	for (size_t i = 0; i < exec->nsteps; i++)
		sim_payload_clear(&exec->steps[i].payload);
	free(exec->steps);
	sim_handle_drop(exec);
	free(exec);
}

CUresult sim_exec_new(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	static uint64_t next_id = 1;

	if (!out || !sim_handle_is(graph, SIM_GRAPH) || flags & ~15ull)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphExec exec = calloc(1, sizeof(*exec));
	if (!exec || !sim_handle_add(exec, SIM_EXEC)) {
		free(exec);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	exec->id = next_id++;
	exec->flags = flags;
	CUresult result = flatten(exec, graph);
	if (result) {
		sim_exec_free(exec);
		return result;
	}
	*out = exec;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	SIM_ENTER(cuGraphInstantiateWithFlags);
	return sim_exec_new(exec, graph, flags);
}

static CUresult instantiate_old(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size)
{
	if (error_node)
		*error_node = NULL;
	if (log && log_size)
		*log = 0;
	return sim_exec_new(exec, graph, 0);
}

SIM_EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size)
{
	SIM_ENTER(cuGraphInstantiate);
	return instantiate_old(exec, graph, error_node, log, log_size);
}

SIM_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size)
{
	SIM_ENTER(cuGraphInstantiate_v2);
	return instantiate_old(exec, graph, error_node, log, log_size);
}

SIM_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	SIM_ENTER(cuGraphInstantiateWithParams);
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_exec_new(exec, graph, p->flags);
	p->hErrNode_out = NULL;
	p->result_out = result ? 1 : 0;
	return result;
}

SIM_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	return cuGraphInstantiateWithParams(exec, graph, p);
}

SIM_EXPORT CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
	SIM_ENTER(cuGraphExecGetFlags);
	if (!flags || !sim_handle_is(exec, SIM_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = exec->flags;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	SIM_ENTER(cuGraphExecDestroy);
	if (!sim_handle_is(exec, SIM_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	sim_exec_free(exec);
	return CUDA_SUCCESS;
}

/* Take or give back the memory of a step before the work of the graph is submitted. */
static CUresult memory_step(CUcontext ctx, CUgraphExec exec, const struct sim_payload *p)
{
	struct sim_block *block = sim_block_at(p->memory.addr);

	if (p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
		if (block && exec->flags & AUTO_FREE_ON_LAUNCH)
			sim_pool_free(block);
		return sim_graph_memory_alloc(ctx, p->memory.device, p->memory.addr, p->memory.bytes);
	}
	return block ? sim_pool_free(block) : CUDA_ERROR_INVALID_VALUE;
}

/* What has gathered to go to the stream as one item. */
struct gathered {
	uint64_t cost;
	bool any;
};

static CUresult flush(CUstream stream, struct gathered *g, bool always)
{
	uint64_t cost = g->cost;
	bool some = g->cost || always;

	*g = (struct gathered){ 0 };
	return some ? sim_submit(stream, cost, NULL) : CUDA_SUCCESS;
}

static CUresult perform_kernel(CUstream stream, const struct sim_launch *kernel, struct gathered *g)
{
	struct sim_work work;

	if (sim_kernel_waits(kernel, &work)) {
		SIM_TRY(flush(stream, g, false));
		return sim_submit_work(stream, &work);
	}
	g->cost += sim_kernel_cost(kernel);
	g->any = true;
	sim_kernel_effect(kernel);
	return CUDA_SUCCESS;
}

static CUresult perform_fill(CUstream stream, const sim_memset_params *fill, struct gathered *g)
{
	struct sim_held held;

	g->cost += sim_memset_cost(stream->ctx, fill);
	g->any = true;
	sim_memset_but_flags(fill, &held);
	if (!held.n)
		return CUDA_SUCCESS;
	SIM_TRY(flush(stream, g, false));
	return sim_words_change(stream, &held);
}

static CUresult perform_copy(CUstream stream, const struct sim_copy *copy, struct gathered *g)
{
	struct sim_held held;

	g->cost += sim_copy_cost(stream->ctx, copy);
	g->any = true;
	sim_copy_but_flags(copy, &held);
	if (!held.n)
		return CUDA_SUCCESS;
	SIM_TRY(flush(stream, g, false));
	return sim_words_change(stream, &held);
}

static CUresult perform(CUgraphExec exec, CUstream stream, struct sim_payload *p, struct gathered *g)
{
	CUevent event = sim_handle_is(p->event, SIM_EVENT) ? p->event : NULL;
	sim_host_params host = p->host;

	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
	case CU_GRAPH_NODE_TYPE_MEM_FREE: return memory_step(stream->ctx, exec, p);
	case SIM_NODE_KERNEL: return perform_kernel(stream, &p->kernel, g);
	case SIM_NODE_MEMSET: return perform_fill(stream, &p->fill, g);
	case SIM_NODE_MEMCPY: return perform_copy(stream, &p->copy, g);
	case SIM_NODE_HOST:
		SIM_TRY(flush(stream, g, true));
		return sim_submit_host(stream, NULL, host.fn, host.userData);
	case SIM_NODE_EVENT_RECORD:
		SIM_TRY(flush(stream, g, false));
		return sim_submit(stream, 0, event);
	default: return CUDA_SUCCESS;
	}
}

static CUresult run(CUgraphExec exec, CUstream stream)
{
	struct gathered g = { 0, true };

	for (size_t i = 0; i < exec->nsteps; i++) {
		struct sim_payload *p = &exec->steps[i].payload;
		if (p->disabled)
			continue;
		SIM_TRY(perform(exec, stream, p, &g));
		if (!sim_handle_is(exec, SIM_EXEC)) /* submitting may wait, and lets go of the lock then */
			return CUDA_ERROR_INVALID_VALUE;
	}
	return flush(stream, &g, g.any);
}

static CUresult launch(CUgraphExec exec, CUstream handle)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!sim_handle_is(exec, SIM_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_implicit(stream));
	if (!stream->capture)
		return run(exec, stream);
	/* Captured, a launch becomes a child graph of the same steps, in order. */
	CUgraph child = sim_graph_new();
	CUgraphNode last = NULL;
	for (size_t i = 0; child && i < exec->nsteps; i++) {
		struct sim_payload payload;
		if (sim_payload_copy(&payload, &exec->steps[i].payload) || sim_graph_add(child, &last, last != NULL, &payload, &last))
			break;
	}
	return child ? sim_capture_graph(stream, child) : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	SIM_ENTER(cuGraphLaunch);
	return launch(exec, stream);
}

SIM_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return cuGraphLaunch(exec, SIM_PTSZ(stream));
}

SIM_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
	SIM_ENTER(cuGraphUpload);
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	return sim_handle_is(exec, SIM_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	return cuGraphUpload(exec, SIM_PTSZ(stream));
}
