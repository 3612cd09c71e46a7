/* SPDX-License-Identifier: Apache-2.0
 *
 * The beginning and end of contexts, for the hooks.  Making and ending them is done one at a time per gpu
 * (context_lock), so that a context's handle is not reused before its memory is uncharged, and two threads that retain
 * the primary context at once are not both charged for it.  The lock is held across the driver's call, which takes the
 * driver's own lock.
 *
 * The blocks that end with a context are found by walking the table.  Memory of pools, of cuMemCreate and of graphs
 * belongs to the device and outlives contexts (seen on a card: it survives even the reset of the primary one), so those
 * blocks name none.
 */
#include "shim.h"
#include "time/launch.h"

struct fall {
	CUcontext context;
	uint64_t bytes[GL_MAX_DEVICES][GL_MEM_KINDS];
};

static bool falls(struct gl_block *block, void *arg)
{
	struct fall *fall = arg;
	if (block->context != fall->context || block->ordinal >= GL_MAX_DEVICES || block->kind >= GL_MEM_KINDS)
		return false;
	if (block->share || block->imported) {
		gl_uncharge_block(block);
		return true;
	}
	fall->bytes[block->ordinal][block->kind] += block->bytes;
	return true;
}

void gl_context_gone(struct gl_gpu *gpu, CUcontext context)
{
	struct fall fall = {.context = context};
	struct gl_block known;
	gl_meter_context_gone(context);
	(void)gl_block_take(GL_SPACE_CONTEXT, (uintptr_t)context, &known);
	if (context)
		gl_block_each(falls, &fall);
	for (int ordinal = 0; ordinal < gl_self.gpu_count; ordinal++)
		for (int kind = 0; kind < GL_MEM_KINDS; kind++)
			gl_uncharge(&gl_self.gpu[ordinal], (enum gl_memory_kind)kind, fall.bytes[ordinal][kind]);
	if (gl_load_relaxed(&gpu->account->contexts) > 0)
		gl_sub_relaxed(&gpu->account->contexts, 1);
	(void)gl_overhead_measure(gpu);
}

struct move {
	CUcontext from, to;
};

static bool moves(struct gl_block *block, void *arg)
{
	struct move *move = arg;
	if (block->context == move->from)
		block->context = move->to;
	return false;
}

void gl_context_inherit(CUcontext from, CUcontext to)
{
	struct move move = {from, to};
	if (from)
		gl_block_each(moves, &move);
}

void gl_context_too_large(struct gl_gpu *gpu, uint64_t bytes)
{
	static uint32_t told;
	uint64_t limit = gl_limit_bytes(gpu), mib = UINT64_C(1) << 20;
	if (gl_load_relaxed(&gpu->overhead_blind)) { /* the cost is still a guess */
		gl_log(GL_WARN, "device %d: what a context takes cannot be seen here%s; taken for %llu bytes, it passes the quota of "
		       "%llu bytes", gpu->ordinal, gl_no_descriptors() ? ", for want of a file descriptor" : "",
		       (unsigned long long)bytes, (unsigned long long)limit);
		return;
	}
	gl_log(GL_WARN, "device %d: a context does not fit the quota of %llu bytes", gpu->ordinal, (unsigned long long)limit);
	/* No allocation can work then, and CUDA only returns "out of memory". */
	if (limit < bytes && gl_add_relaxed(&told, 1) == 0)
		gl_log(GL_ERROR, "device %d: a context alone takes %llu MiB of memory, and the quota is %llu MiB: "
		       "no program can use this GPU with it; give it %llu MiB and what the program needs",
		       gpu->ordinal, (unsigned long long)((bytes + mib - 1) / mib), (unsigned long long)(limit / mib),
		       (unsigned long long)((bytes + mib - 1) / mib));
}

CUresult gl_context_made(struct gl_gpu *gpu, struct gl_context_cost *cost, CUresult result, CUcontext context)
{
	if (result != CUDA_SUCCESS) {
		gl_overhead_context_cancel(gpu, cost);
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			gl_count_card_refusal(gpu);
		return result;
	}
	if (gl_overhead_context_end(gpu, cost, context))
		return CUDA_SUCCESS;
	gl_add_relaxed(&gpu->device->refused, 1);
	gl_context_too_large(gpu, gl_load_acquire(&gpu->device->context_bytes));
	return CUDA_ERROR_OUT_OF_MEMORY;
}

bool gl_context_ended(CUresult result)
{
	return result == CUDA_SUCCESS || (result >= 700 && result < 800 && result != CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

bool gl_primary_active(const struct gl_gpu *gpu)
{
	unsigned int flags;
	int active = 0;
	return REAL(cuDevicePrimaryCtxGetState)(gpu->ordinal, &flags, &active) == CUDA_SUCCESS && active;
}

static CUresult make_primary(struct gl_gpu *gpu, CUcontext *context)
{
	struct gl_context_cost cost;
	if (!gl_overhead_context_begin(gpu, &cost)) {
		gl_count_refusal(gpu, cost.reserved);
		gl_context_too_large(gpu, cost.reserved);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult real = REAL(cuDevicePrimaryCtxRetain)(context, gpu->ordinal);
	CUresult result = gl_context_made(gpu, &cost, real, *context);
	if (real == CUDA_SUCCESS && result != CUDA_SUCCESS) {
		REAL(cuDevicePrimaryCtxRelease_v2)(gpu->ordinal);
		gl_context_gone(gpu, *context);
	}
	return result;
}

CUresult gl_primary_retain(struct gl_gpu *gpu, CUcontext *context)
{
	CUcontext got = NULL;
	gl_lock(&gpu->context_lock);
	CUresult result = gl_primary_active(gpu) ? REAL(cuDevicePrimaryCtxRetain)(&got, gpu->ordinal)
						 : make_primary(gpu, &got);
	if (result == CUDA_SUCCESS)
		*context = gpu->primary = got;
	gl_unlock(&gpu->context_lock);
	return result;
}

CUresult gl_primary_leave(struct gl_gpu *gpu, gl_type_cuDevicePrimaryCtxRelease_v2 *real)
{
	gl_lock(&gpu->context_lock);
	bool before = gl_primary_active(gpu);
	gl_meter_context_going(gpu->primary);
	CUresult result = real(gpu->ordinal);
	if (before && gl_context_ended(result) && !gl_primary_active(gpu))
		gl_context_gone(gpu, gpu->primary);
	else
		gl_meter_context_stays(gpu->primary);
	gl_unlock(&gpu->context_lock);
	return result;
}
