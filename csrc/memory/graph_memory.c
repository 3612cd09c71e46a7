/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory nodes of graphs.  The driver has one pool per device for them.  When a graph is first uploaded or launched,
 * the driver takes its memory from the card into that pool, and keeps it until a trim (seen on a card: not even
 * destroying the graph gives it back).  Graphs that run one after the other, and free what they allocate, share it.  So
 * per gpu the larger of two figures is charged: what the driver holds for graphs, and the largest peak among the graphs
 * that have not run yet and will still take it.  A node that does not fit the quota is not added.  A launch or an
 * upload first reserves the pool's possible growth, and is refused if that does not fit.
 *
 * A peak is counted in the order in which nodes are added; branches that run at the same time may need more, which the
 * driver's figure then shows.
 *
 * Locks: as in pool.c.
 */
#include "memory/graph_memory.h"

#define AUTO_FREE_ON_LAUNCH 1u

struct plan {
	uint32_t ordinal;
	uint64_t peak;
};

static bool largest(struct gl_block *block, void *arg)
{
	struct plan *plan = arg;
	bool graph = block->space == GL_SPACE_GRAPH || block->space == GL_SPACE_GRAPH_EXEC;
	if (graph && block->ordinal == plan->ordinal && !(block->count & SPENT) && block->bytes > plan->peak)
		plan->peak = block->bytes;
	return false;
}

/* Computes the figures of the graphs that have not run yet.  Call with books_lock held. */
static void plan_again(struct gl_gpu *gpu)
{
	struct plan plan = {.ordinal = (uint32_t)gpu->ordinal};
	gl_block_each(largest, &plan);
	gpu->graph_peak_bytes = plan.peak;
}

void gl_graph_memory_refresh(struct gl_gpu *gpu)
{
	cuuint64_t held = 0;
	if (REAL(cuDeviceGetGraphMemAttribute)(gpu->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &held) !=
	    CUDA_SUCCESS)
		held = gpu->graph_charged_bytes - gpu->graph_unused_bytes;
	uint64_t to = held > gpu->graph_peak_bytes ? held : gpu->graph_peak_bytes;
	gl_recharge(gpu, GL_MEM_GRAPH, gpu->graph_charged_bytes, to);
	gpu->graph_charged_bytes = to;
	gl_store_relaxed(&gpu->graph_unused_bytes, to - held);
}

void gl_graph_memory_settle(struct gl_gpu *gpu, uint64_t reserved, bool plans)
{
	CUstreamCaptureMode mode = gl_capture_relax();
	gl_lock(&gpu->books_lock);
	gpu->graph_charged_bytes += reserved;
	if (plans)
		plan_again(gpu);
	gl_graph_memory_refresh(gpu);
	gl_unlock(&gpu->books_lock);
	gl_capture_restore(mode);
}

void gl_graph_memory_trimmed(struct gl_gpu *gpu)
{
	gl_graph_memory_settle(gpu, 0, false);
}

uint64_t gl_graph_memory_need(struct gl_gpu *gpu, CUgraph graph, uint64_t bytes)
{
	struct gl_block block = {.space = 0};
	uint64_t live;
	gl_graph_memory_settle(gpu, 0, false);
	(void)gl_block_get(GL_SPACE_GRAPH, gl_graph_key(graph, (uint32_t)gpu->ordinal), &block);
	if (__builtin_add_overflow(block.other, bytes, &live))
		return UINT64_MAX;
	gl_lock(&gpu->books_lock);
	uint64_t charged = gpu->graph_charged_bytes;
	gl_unlock(&gpu->books_lock);
	return live > charged ? live - charged : 0;
}

int gl_graph_memory_prepare(struct gl_gpu *gpu, CUgraph graph, bool captured)
{
	struct gl_block block = {.key = gl_graph_key(graph, (uint32_t)gpu->ordinal), .space = GL_SPACE_GRAPH,
				 .kind = GL_MEM_GRAPH, .ordinal = (uint32_t)gpu->ordinal, .count = captured ? CAPTURING : 0};
	struct gl_block known;
	gl_store_release(&gpu->graph_memory, 1u);
	return gl_block_get(GL_SPACE_GRAPH, block.key, &known) ? 0 : gl_block_put(&block, NULL);
}

struct change {
	uint64_t more, less;
};

static bool change(struct gl_block *block, void *arg)
{
	struct change *change = arg;
	block->other += change->more;
	block->other -= change->less < block->other ? change->less : block->other;
	if (block->other > block->bytes)
		block->bytes = block->other;
	return false;
}

void gl_graph_memory_add(struct gl_gpu *gpu, CUgraph graph, CUdeviceptr pointer, uint64_t bytes, uint64_t reserved)
{
	struct change more = {.more = bytes};
	uint64_t key = gl_graph_key(graph, (uint32_t)gpu->ordinal);
	struct gl_block block = {.key = pointer, .bytes = bytes, .space = GL_SPACE_POINTER, .kind = GL_MEM_GRAPH,
				 .ordinal = (uint32_t)gpu->ordinal, .other = key};
	struct gl_block old = {.space = 0};
	/* Without a block the free node is not recorded, and the peak is counted too high. */
	if (pointer && gl_block_put(&block, &old) == 0 && old.space)
		gl_uncharge_block(&old);
	(void)gl_block_update(GL_SPACE_GRAPH, key, change, &more);
	gl_graph_memory_settle(gpu, reserved, true);
}

void gl_graph_memory_freed(CUgraph graph, CUdeviceptr pointer)
{
	struct gl_block block;
	if (!gl_block_get(GL_SPACE_POINTER, pointer, &block) || block.kind != GL_MEM_GRAPH ||
	    block.other != gl_graph_key(graph, block.ordinal))
		return; /* freed by another graph: the block stays with the one that allocates it */
	struct change less = {.less = block.bytes};
	(void)gl_block_update(GL_SPACE_GRAPH, block.other, change, &less);
}

/* ---- graphs that are made executable, run and end ---- */

struct heir {
	uint64_t graph, to; /* to: 0, or the graph that owns the pointers from now on */
};

/* Drops or moves the pointers of a graph that was destroyed. */
static bool inherit(struct gl_block *block, void *arg)
{
	struct heir *heir = arg;
	if (block->space != GL_SPACE_POINTER || block->kind != GL_MEM_GRAPH || block->other != heir->graph)
		return false;
	block->other = heir->to;
	return !heir->to;
}

void gl_graph_memory_forget(CUgraph graph)
{
	for (int i = 0; graph && i < gl_self.gpu_count; i++) {
		struct gl_gpu *gpu = &gl_self.gpu[i];
		struct gl_block block;
		if (!gl_load_acquire(&gpu->graph_memory) ||
		    !gl_block_take(GL_SPACE_GRAPH, gl_graph_key(graph, (uint32_t)i), &block))
			continue;
		struct heir heir = {.graph = block.key};
		gl_block_each(inherit, &heir);
		gl_graph_memory_settle(gpu, 0, true);
	}
}

bool gl_graph_spend(struct gl_block *block, void *before)
{
	*(uint32_t *)before = block->count;
	block->count = (block->count | SPENT) & ~(uint32_t)UPLOADED;
	return false;
}

/* Moves the graph's planned memory to its executable graph. */
void gl_graph_memory_instantiated(CUgraph graph, CUgraphExec exec, unsigned long long flags)
{
	for (int i = 0; graph && exec && i < gl_self.gpu_count; i++) {
		struct gl_block block;
		uint64_t key = gl_graph_key(graph, (uint32_t)i);
		uint32_t before;
		if (!gl_load_acquire(&gl_self.gpu[i].graph_memory) || !gl_block_get(GL_SPACE_GRAPH, key, &block) ||
		    !gl_block_update(GL_SPACE_GRAPH, key, gl_graph_spend, &before))
			continue;
		uint32_t count = (before & SPENT) | (flags & AUTO_FREE_ON_LAUNCH ? AUTO_FREE : 0);
		block = (struct gl_block){.key = gl_graph_key(exec, (uint32_t)i), .bytes = block.bytes, .count = count,
					  .space = GL_SPACE_GRAPH_EXEC, .kind = GL_MEM_GRAPH, .ordinal = (uint32_t)i};
		(void)gl_block_put(&block, NULL);
	}
}

void gl_graph_memory_exec_forget(CUgraphExec exec)
{
	for (int i = 0; exec && i < gl_self.gpu_count; i++) {
		struct gl_block block;
		if (gl_load_acquire(&gl_self.gpu[i].graph_memory) &&
		    gl_block_take(GL_SPACE_GRAPH_EXEC, gl_graph_key(exec, (uint32_t)i), &block))
			gl_graph_memory_settle(&gl_self.gpu[i], 0, true);
	}
}

void gl_graph_memory_moved(CUgraph child, CUgraph parent)
{
	for (int i = 0; i < gl_self.gpu_count; i++) {
		struct gl_gpu *gpu = &gl_self.gpu[i];
		struct gl_block block;
		if (!gl_load_acquire(&gpu->graph_memory) || gl_graph_memory_prepare(gpu, parent, false) != 0 ||
		    !gl_block_take(GL_SPACE_GRAPH, gl_graph_key(child, (uint32_t)i), &block))
			continue;
		/* The child's peak counts as live in the parent from now on, because all its nodes run at one point of
		 * the parent's order. */
		struct heir heir = {.graph = block.key, .to = gl_graph_key(parent, (uint32_t)i)};
		struct change more = {.more = block.bytes};
		gl_block_each(inherit, &heir);
		(void)gl_block_update(GL_SPACE_GRAPH, heir.to, change, &more);
		gl_graph_memory_settle(gpu, 0, true);
	}
}

/* ---- capture ---- */

static bool not_capturing(struct gl_block *block, void *unused)
{
	(void)unused;
	block->count &= ~(uint32_t)CAPTURING;
	return false;
}

struct lost {
	bool on[GL_MAX_DEVICES];
};

static bool is_lost(struct gl_block *block, void *arg)
{
	struct lost *lost = arg;
	if (block->space != GL_SPACE_GRAPH || !(block->count & CAPTURING) || block->ordinal >= GL_MAX_DEVICES)
		return false;
	return lost->on[block->ordinal] = true;
}

void gl_graph_memory_captured(CUgraph graph)
{
	bool any = false;
	for (int i = 0; i < gl_self.gpu_count; i++) {
		any |= gl_load_acquire(&gl_self.gpu[i].graph_memory) != 0;
		if (graph && gl_load_acquire(&gl_self.gpu[i].graph_memory))
			(void)gl_block_update(GL_SPACE_GRAPH, gl_graph_key(graph, (uint32_t)i), not_capturing, NULL);
	}
	/* A failed capture does not tell which graph it destroyed.  Once no capture is open, all captured graphs have
	 * ended. */
	if (graph || !any || gl_load_acquire(&gl_self.capturing))
		return;
	struct lost lost = {.on = {false}};
	gl_block_each(is_lost, &lost);
	for (int i = 0; i < gl_self.gpu_count; i++)
		if (lost.on[i])
			gl_graph_memory_settle(&gl_self.gpu[i], 0, true);
}

CUgraph gl_capturing_graph(CUstream stream, bool per_thread)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUgraph graph = NULL;
	cuuint64_t id;
	CUresult r = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status)
				: REAL(cuStreamIsCapturing)(stream, &status);
	if (GL_LIKELY(r != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE))
		return NULL;
	r = per_thread ? REAL(cuStreamGetCaptureInfo_v2_ptsz)(stream, &status, &id, &graph, NULL, NULL)
		       : REAL(cuStreamGetCaptureInfo_v2)(stream, &status, &id, &graph, NULL, NULL);
	return r == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? graph : NULL;
}
