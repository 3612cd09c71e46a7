/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory nodes of graphs.  The driver takes a graph's memory from the card when it is first uploaded or launched, and
 * keeps it until it is asked to trim (seen on a card: not even destroying the graph gives it back).  By then
 * nothing can be refused any more, so a graph is charged when its nodes are added: per gpu the larger of what the
 * driver holds for graphs and the sum of the peaks of the living graphs.  A graph lives until it and what was
 * instantiated from it are destroyed (it can be instantiated once only while it has memory nodes).
 *
 * A peak is counted in the order in which nodes are added; branches that run at the same time may need more, which the
 * driver's figure then shows.
 *
 * Locks: as in pool.c.
 */
#include "shim.h"

/* A graph may have memory on several gpus.  Handles are addresses of objects larger than GL_MAX_DEVICES bytes. */
static uint64_t key_of(const void *handle, uint32_t ordinal)
{
	return (uint64_t)(uintptr_t)handle + ordinal;
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
	gl_put(&gpu->graph_unused_bytes, to - held);
}

static void refresh(struct gl_gpu *gpu)
{
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	gl_graph_memory_refresh(gpu);
	gl_unlock(&gpu->books_lock);
	gl_unrelax(mode);
}

void gl_graph_memory_launched(struct gl_gpu *gpu)
{
	refresh(gpu);
}

uint64_t gl_graph_memory_need(struct gl_gpu *gpu, CUgraph graph, uint64_t bytes)
{
	struct gl_block block = {.space = 0};
	uint64_t live, sum;
	refresh(gpu);
	(void)gl_block_get(GL_SPACE_GRAPH, key_of(graph, (uint32_t)gpu->ordinal), &block);
	if (__builtin_add_overflow(block.other, bytes, &live))
		return UINT64_MAX;
	uint64_t growth = live > block.bytes ? live - block.bytes : 0;
	gl_lock(&gpu->books_lock);
	bool too_much = __builtin_add_overflow(gpu->graph_peak_bytes, growth, &sum);
	uint64_t charged = gpu->graph_charged_bytes;
	gl_unlock(&gpu->books_lock);
	if (too_much)
		return UINT64_MAX;
	return sum > charged ? sum - charged : 0;
}

int gl_graph_memory_prepare(struct gl_gpu *gpu, CUgraph graph, bool captured)
{
	struct gl_block block = {.key = key_of(graph, (uint32_t)gpu->ordinal), .space = GL_SPACE_GRAPH,
				 .kind = GL_MEM_GRAPH, .ordinal = (uint32_t)gpu->ordinal, .count = captured};
	struct gl_block known;
	gl_store(&gpu->graph_memory, 1u);
	return gl_block_get(GL_SPACE_GRAPH, block.key, &known) ? 0 : gl_block_put(&block, NULL);
}

struct change {
	uint64_t more, less, growth;
};

static bool change(struct gl_block *block, void *arg)
{
	struct change *change = arg;
	block->other += change->more;
	block->other -= change->less < block->other ? change->less : block->other;
	change->growth = block->other > block->bytes ? block->other - block->bytes : 0;
	block->bytes += change->growth;
	return false;
}

void gl_graph_memory_add(struct gl_gpu *gpu, CUgraph graph, CUdeviceptr pointer, uint64_t bytes, uint64_t reserved)
{
	struct change more = {.more = bytes};
	uint64_t key = key_of(graph, (uint32_t)gpu->ordinal);
	struct gl_block block = {.key = pointer, .bytes = bytes, .space = GL_SPACE_POINTER, .kind = GL_MEM_GRAPH,
				 .ordinal = (uint32_t)gpu->ordinal, .other = key};
	struct gl_block old = {.space = 0};
	/* Without a block its free node is not seen, and the peak is counted too high. */
	if (pointer && gl_block_put(&block, &old) == 0 && old.space)
		gl_charge_release(&old);
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	(void)gl_block_update(GL_SPACE_GRAPH, key, change, &more);
	gpu->graph_peak_bytes += more.growth;
	gpu->graph_charged_bytes += reserved;
	gl_graph_memory_refresh(gpu);
	gl_unlock(&gpu->books_lock);
	gl_unrelax(mode);
}

void gl_graph_memory_freed(CUgraph graph, CUdeviceptr pointer)
{
	struct gl_block block;
	if (!gl_block_get(GL_SPACE_POINTER, pointer, &block) || block.kind != GL_MEM_GRAPH ||
	    block.other != key_of(graph, block.ordinal))
		return; /* freed by another graph than the one that allocates it: it stays that one's */
	struct change less = {.less = block.bytes};
	(void)gl_block_update(GL_SPACE_GRAPH, block.other, change, &less);
}

/* ---- the end of graphs ---- */

struct heir {
	uint64_t graph, peak, to; /* to: 0, or the graph that the pointers belong to from now on */
	bool found;
};

/* The executable graph takes the peak over; the pointers of the destroyed graph are forgotten or moved. */
static bool inherit(struct gl_block *block, void *arg)
{
	struct heir *heir = arg;
	if (block->space == GL_SPACE_GRAPH_EXEC && block->other == heir->graph && !heir->to) {
		block->other = 0;
		block->bytes = heir->peak;
		heir->found = true;
	}
	if (block->space != GL_SPACE_POINTER || block->kind != GL_MEM_GRAPH || block->other != heir->graph)
		return false;
	block->other = heir->to;
	return !heir->to;
}

static void lower_peak(struct gl_gpu *gpu, uint64_t bytes)
{
	CUstreamCaptureMode mode = gl_relax();
	gl_lock(&gpu->books_lock);
	gpu->graph_peak_bytes -= bytes < gpu->graph_peak_bytes ? bytes : gpu->graph_peak_bytes;
	gl_graph_memory_refresh(gpu);
	gl_unlock(&gpu->books_lock);
	gl_unrelax(mode);
}

void gl_graph_memory_forget(CUgraph graph)
{
	for (int i = 0; graph && i < gl_self.gpu_count; i++) {
		struct gl_gpu *gpu = &gl_self.gpu[i];
		struct gl_block block;
		if (!gl_load(&gpu->graph_memory) ||
		    !gl_block_take(GL_SPACE_GRAPH, key_of(graph, (uint32_t)i), &block))
			continue;
		struct heir heir = {.graph = block.key, .peak = block.bytes};
		gl_block_each(inherit, &heir);
		if (!heir.found)
			lower_peak(gpu, block.bytes);
	}
}

void gl_graph_memory_instantiated(CUgraph graph, CUgraphExec exec)
{
	for (int i = 0; graph && exec && i < gl_self.gpu_count; i++) {
		struct gl_block block;
		uint64_t key = key_of(graph, (uint32_t)i);
		if (!gl_load(&gl_self.gpu[i].graph_memory) || !gl_block_get(GL_SPACE_GRAPH, key, &block))
			continue;
		block = (struct gl_block){.key = key_of(exec, (uint32_t)i), .space = GL_SPACE_GRAPH_EXEC,
					  .kind = GL_MEM_GRAPH, .ordinal = (uint32_t)i, .other = key};
		(void)gl_block_put(&block, NULL);
	}
}

void gl_graph_memory_exec_forget(CUgraphExec exec)
{
	for (int i = 0; exec && i < gl_self.gpu_count; i++) {
		struct gl_block block;
		if (gl_load(&gl_self.gpu[i].graph_memory) &&
		    gl_block_take(GL_SPACE_GRAPH_EXEC, key_of(exec, (uint32_t)i), &block))
			lower_peak(&gl_self.gpu[i], block.bytes);
	}
}

void gl_graph_memory_moved(CUgraph child, CUgraph parent)
{
	for (int i = 0; i < gl_self.gpu_count; i++) {
		struct gl_gpu *gpu = &gl_self.gpu[i];
		struct gl_block block;
		if (!gl_load(&gpu->graph_memory) || gl_graph_memory_prepare(gpu, parent, false) != 0 ||
		    !gl_block_take(GL_SPACE_GRAPH, key_of(child, (uint32_t)i), &block))
			continue;
		/* The child's peak is live in the parent for good: its nodes run at one point of the parent's order. */
		struct heir heir = {.graph = block.key, .to = key_of(parent, (uint32_t)i)};
		struct change more = {.more = block.bytes};
		gl_block_each(inherit, &heir);
		gl_lock(&gpu->books_lock);
		(void)gl_block_update(GL_SPACE_GRAPH, heir.to, change, &more);
		gpu->graph_peak_bytes += more.growth;
		gpu->graph_peak_bytes -= block.bytes < gpu->graph_peak_bytes ? block.bytes : gpu->graph_peak_bytes;
		gl_unlock(&gpu->books_lock);
	}
}

/* ---- capture ---- */

static bool not_capturing(struct gl_block *block, void *unused)
{
	(void)unused;
	block->count = 0;
	return false;
}

struct lost {
	uint64_t peak[GL_MAX_DEVICES];
	bool any;
};

static bool is_lost(struct gl_block *block, void *arg)
{
	struct lost *lost = arg;
	if (block->space != GL_SPACE_GRAPH || !block->count || block->ordinal >= GL_MAX_DEVICES)
		return false;
	lost->peak[block->ordinal] += block->bytes;
	return lost->any = true;
}

void gl_graph_memory_captured(CUgraph graph)
{
	bool any = false;
	for (int i = 0; i < gl_self.gpu_count; i++) {
		any |= gl_load(&gl_self.gpu[i].graph_memory) != 0;
		if (graph && gl_load(&gl_self.gpu[i].graph_memory))
			(void)gl_block_update(GL_SPACE_GRAPH, key_of(graph, (uint32_t)i), not_capturing, NULL);
	}
	/* A failed capture does not say which graph it destroyed; once none is open, all that were open are gone. */
	if (graph || !any || gl_load(&gl_self.capturing))
		return;
	struct lost lost = {.any = false};
	gl_block_each(is_lost, &lost);
	for (int i = 0; lost.any && i < gl_self.gpu_count; i++)
		if (lost.peak[i])
			lower_peak(&gl_self.gpu[i], lost.peak[i]);
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
