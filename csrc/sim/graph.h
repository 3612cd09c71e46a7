/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs, shared by graph*.c and capture.c.  A node's payload describes its work.  An executable graph has copies
 * of the payloads, with child graphs flattened, in an order that respects the dependencies.
 */
#ifndef GL_SIM_GRAPH_H
#define GL_SIM_GRAPH_H

#include "sim.h"

struct sim_payload {
	int type;
	bool disabled;
	struct sim_launch kernel;
	char *values; /* values of the kernel's parameters; kernel.params points into them */
	struct sim_copy copy;
	sim_memset_params fill;
	sim_host_params host;
	CUgraph child;
	CUevent event;
	struct {
		uint64_t addr, bytes;
		CUdevice device;
	} memory;
};
struct CUgraphNode_st {
	CUgraph graph;
	uint64_t id;
	struct sim_payload payload;
	CUgraphNode *deps;
	size_t ndeps;
	CUgraphNode clone_of;
	uint64_t seen; /* number of the last search that visited this node */
};
struct CUgraph_st {
	uint64_t id;
	bool owned; /* true if a node or a capture owns the graph, so that the program must not destroy it */
	bool has_memory;
	CUgraphNode *nodes;
	size_t nnodes, capacity;
};

struct sim_step {
	CUgraphNode origin; /* the node that this step was made from */
	struct sim_payload payload;
};
struct CUgraphExec_st {
	uint64_t id;
	unsigned long long flags;
	struct sim_step *steps;
	size_t nsteps, capacity;
};

CUresult sim_exec_new(CUgraphExec *out, CUgraph graph, unsigned long long flags);
void sim_exec_free(CUgraphExec exec);
CUresult sim_capture_graph(CUstream stream, CUgraph graph); /* takes the graph over */

CUgraph sim_graph_new(void);
void sim_graph_free(CUgraph graph);
CUgraph sim_graph_clone(CUgraph graph);
/* Takes ownership of the payload's memory, also on failure. */
CUresult sim_graph_add(CUgraph graph, const CUgraphNode *deps, size_t ndeps, struct sim_payload *payload, CUgraphNode *out);
bool sim_node_depends(CUgraphNode node, CUgraphNode on); /* true if `node` is `on`, or depends on it */
CUresult sim_payload_kernel(struct sim_payload *payload, const struct sim_launch *launch);
CUresult sim_payload_copy(struct sim_payload *to, const struct sim_payload *from);
void sim_payload_clear(struct sim_payload *payload);

CUresult sim_graph_memory_plan(CUdevice device, uint64_t bytes, uint64_t *addr); /* an address, no memory yet */
bool sim_graph_memory_planned(uint64_t addr, uint64_t bytes);
CUresult sim_graph_memory_alloc(CUcontext ctx, CUdevice device, uint64_t addr, uint64_t bytes);

#endif
