/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches and uploads of graphs with memory nodes: reserves beforehand what they may take from the card.
 */
#include "memory/graph_memory.h"

static bool upload(struct gl_block *block, void *before)
{
	(void)gl_graph_spend(block, before);
	block->count |= UPLOADED;
	return false;
}

/* The pool grows by the memory that does not fit into its unused part.  Memory that an earlier launch of the same graph
 * has left is freed by the launch itself, or the driver refuses the launch.  Until a trim, the driver counts memory
 * that a graph has freed itself as used (seen on an H200), although another graph may take it.  So before a trim the
 * result may be too high. */
static uint64_t growth(struct gl_gpu *gpu, const struct gl_block *exec)
{
	cuuint64_t used = 0;
	uint64_t charged, want;
	CUstreamCaptureMode mode = gl_capture_relax();
	if (REAL(cuDeviceGetGraphMemAttribute)(gpu->ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS)
		used = 0;
	gl_capture_restore(mode);
	bool own = (exec->count & UPLOADED) || (exec->count & (SPENT | AUTO_FREE)) == (SPENT | AUTO_FREE);
	if (own)
		want = used > exec->bytes ? used : exec->bytes;
	else if (__builtin_add_overflow(used, exec->bytes, &want))
		want = UINT64_MAX;
	gl_graph_memory_settle(gpu, 0, false);
	gl_lock(&gpu->books_lock);
	charged = gpu->graph_charged_bytes;
	gl_unlock(&gpu->books_lock);
	return want > charged ? want - charged : 0;
}

/* The refusal has trimmed the pool, so the used memory is known now, and a smaller reservation may suffice. */
static int reserve_growth(struct gl_gpu *gpu, const struct gl_block *exec, uint64_t *need)
{
	uint64_t first = *need = growth(gpu, exec);
	if (gl_reserve_uncounted(gpu, GL_MEM_GRAPH, first) == 0)
		return 0;
	*need = growth(gpu, exec);
	if (*need < first)
		return gl_reserve(gpu, GL_MEM_GRAPH, *need);
	gl_count_refusal(gpu, first);
	return -ENOMEM;
}

bool gl_graph_memory_launch_begin(CUgraphExec exec, struct gl_graph_launch *launch)
{
	launch->any = false;
	for (int i = 0; exec && i < gl_self.gpu_count; i++) {
		struct gl_gpu *gpu = &gl_self.gpu[i];
		struct gl_block block;
		launch->need[i] = 0;
		if (!gl_load_acquire(&gpu->graph_memory) ||
		    !gl_block_get(GL_SPACE_GRAPH_EXEC, gl_graph_key(exec, (uint32_t)i), &block))
			continue;
		uint64_t need;
		if (reserve_growth(gpu, &block, &need) != 0) {
			while (i-- > 0) {
				gl_uncharge(&gl_self.gpu[i], GL_MEM_GRAPH, launch->need[i]);
				if (launch->need[i])
					gl_in_flight_end(&gl_self.gpu[i]);
			}
			return false;
		}
		if (need)
			gl_in_flight_begin(gpu); /* until gl_graph_launch_end */
		launch->need[i] = need;
		launch->any = true;
	}
	return true;
}

void gl_graph_memory_launch_end(CUgraphExec exec, const struct gl_graph_launch *launch, bool uploaded, CUresult result)
{
	for (int i = 0; launch->any && i < gl_self.gpu_count; i++) {
		struct gl_gpu *gpu = &gl_self.gpu[i];
		uint32_t before = SPENT;
		if (!gl_load_acquire(&gpu->graph_memory))
			continue;
		if (result == CUDA_SUCCESS)
			(void)gl_block_update(GL_SPACE_GRAPH_EXEC, gl_graph_key(exec, (uint32_t)i), uploaded ? upload : gl_graph_spend,
					      &before);
		gl_graph_memory_settle(gpu, launch->need[i], !(before & SPENT));
		if (launch->need[i])
			gl_in_flight_end(gpu);
	}
}
