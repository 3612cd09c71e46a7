/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: making and ending them.  Each takes memory on the card and has a queue of its own there, by
 * which the card shares its time.  Which context a thread has current is in current.c.
 */
#include <stdlib.h>
#include <string.h>

#include "array.h"

static struct CUctx_st primaries[SIM_MAX_GPUS];

CUcontext sim_primary(CUdevice dev)
{
	CUcontext ctx = &primaries[dev];

	ctx->primary = true;
	return ctx;
}

static uint32_t claim_queue(uint32_t gpu)
{
	struct sim_machine *m = sim_machine;

	for (uint32_t i = 0; i < SIM_MAX_QUEUES; i++) {
		struct sim_queue *q = &m->queues[i];
		if (q->used)
			continue;
		memset(q, 0, sizeof(*q));
		q->gpu = gpu;
		q->proc = sim_slot;
		q->lanes = SIM_MAX_LANES;
		q->used = 1;
		if (m->queue_limit <= i)
			m->queue_limit = i + 1;
		return i;
	}
	return SIM_NO_QUEUE;
}

CUresult sim_context_create(CUcontext ctx, CUdevice dev, unsigned int flags)
{
	uint32_t gpu = sim_device_gpu[dev];

	SIM_TRY(sim_charge(gpu, sim_model_of(gpu)->context_bytes));
	ctx->marks = calloc(SIM_QUEUE_DEPTH, sizeof(*ctx->marks));
	sim_machine_lock();
	ctx->queue = claim_queue(gpu);
	ctx->id = sim_machine->next_id++;
	if (ctx->queue != SIM_NO_QUEUE) {
		sim_machine->queues[ctx->queue].id = ctx->id;
		sim_machine->procs[sim_slot].contexts[gpu]++;
	}
	sim_machine_unlock();
	if (!ctx->marks || ctx->queue == SIM_NO_QUEUE) {
		sim_uncharge(gpu, sim_model_of(gpu)->context_bytes);
		free(ctx->marks);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	ctx->gpu = gpu;
	ctx->device = dev;
	ctx->flags = flags;
	ctx->small_bytes = ctx->harvested = 0;
	ctx->limits[0] = 1024;
	ctx->limits[1] = 1 << 20;
	ctx->limits[2] = 8 << 20;
	ctx->alive = true;
	sim_handle_add(ctx, SIM_CTX);
	sim_stream_new(ctx, CU_STREAM_DEFAULT, 0, &ctx->legacy);
	return CUDA_SUCCESS;
}

static bool belongs(const struct sim_block *block, const void *ctx)
{
	return block->ctx == ctx;
}

static void drop_module(void *module)
{
	CUcontext ctx = *(CUcontext *)module;

	sim_uncharge(ctx->gpu, sim_model_of(ctx->gpu)->module_bytes);
	free(module);
}

static void drop_function(void *object)
{
	CUfunction f = object;

	if (f->loaded)
		sim_uncharge(f->ctx->gpu, sim_model_of(f->ctx->gpu)->lazy_bytes);
	free(f->name);
	free(f);
}

static void drop_stream(void *object)
{
	CUstream stream = object;

	sim_capture_stream_gone(stream);
	free(stream->tips);
	free(stream);
}

static void drop_event(void *object)
{
	CUevent event = object;

	free(event->tips);
	free(event);
}

/* End a context: its objects, its memory, its queue and what it cost. */
void sim_context_clear(CUcontext ctx)
{
	struct sim_block *block;

	ctx->alive = false;
	while ((block = sim_block_first(belongs, ctx)))
		sim_free_block(block);
	sim_handle_sweep(SIM_ARRAY, ctx, sim_array_drop);
	sim_handle_sweep(SIM_MIPMAP, ctx, sim_mipmap_drop);
	sim_pools_empty(ctx->gpu);
	sim_machine_lock();
	sim_gpu_advance(ctx->gpu, sim_now());
	sim_machine->queues[ctx->queue].used = 0;
	sim_machine->procs[sim_slot].contexts[ctx->gpu]--;
	sim_machine_unlock();
	sim_handle_sweep(SIM_FUNC, ctx, drop_function);
	sim_handle_sweep(SIM_MODULE, ctx, drop_module);
	sim_handle_sweep(SIM_STREAM, ctx, drop_stream);
	sim_handle_sweep(SIM_EVENT, ctx, drop_event);
	sim_handle_drop(ctx);
	ctx->legacy = NULL;
	free(ctx->marks);
	ctx->marks = NULL;
	sim_uncharge(ctx->gpu, sim_model_of(ctx->gpu)->context_bytes);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev)
{
	SIM_ENTER(cuDevicePrimaryCtxRetain);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	CUcontext ctx = sim_primary(dev);
	if (!ctx->alive)
		SIM_TRY(sim_context_create(ctx, dev, ctx->flags));
	ctx->retained++;
	*out = ctx;
	return CUDA_SUCCESS;
}

static CUresult primary_release(CUdevice dev)
{
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	CUcontext ctx = sim_primary(dev);
	if (!ctx->retained)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--ctx->retained == 0 && ctx->alive) {
		sim_wait_context(ctx);
		sim_context_clear(ctx);
	}
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	SIM_ENTER(cuDevicePrimaryCtxRelease_v2);
	return primary_release(dev);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	SIM_ENTER(cuDevicePrimaryCtxRelease);
	return primary_release(dev);
}

/* Ends the context for all its users; they may use it again after the next retain. */
static CUresult primary_reset(CUdevice dev)
{
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	CUcontext ctx = sim_primary(dev);
	if (ctx->alive) {
		sim_wait_context(ctx);
		sim_context_clear(ctx);
	}
	ctx->retained = 0;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	SIM_ENTER(cuDevicePrimaryCtxReset_v2);
	return primary_reset(dev);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	SIM_ENTER(cuDevicePrimaryCtxReset);
	return primary_reset(dev);
}

static CUresult primary_set_flags(CUdevice dev, unsigned int flags)
{
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (flags & ~0xffu)
		return CUDA_ERROR_INVALID_VALUE;
	sim_primary(dev)->flags = flags;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	SIM_ENTER(cuDevicePrimaryCtxSetFlags_v2);
	return primary_set_flags(dev, flags);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	SIM_ENTER(cuDevicePrimaryCtxSetFlags);
	CUcontext ctx = sim_device_ok(dev) ? sim_primary(dev) : NULL;

	if (ctx && ctx->alive)
		return SIM_ERROR_PRIMARY_CONTEXT_ACTIVE;
	return primary_set_flags(dev, flags);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	SIM_ENTER(cuDevicePrimaryCtxGetState);
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = sim_primary(dev)->flags;
	*active = sim_primary(dev)->alive;
	return CUDA_SUCCESS;
}
