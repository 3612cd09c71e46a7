/* SPDX-License-Identifier: Apache-2.0
 *
 * Which context a thread has current, and what may be asked about it.
 */
#include <stdlib.h>

#include "sim.h"

enum { STACK = 64 };
static __thread CUcontext stack[STACK];
static __thread int depth;

CUresult sim_current(CUcontext *ctx)
{
	if (!depth || !stack[depth - 1])
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!stack[depth - 1]->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (__atomic_load_n(&sim_machine->gpus[stack[depth - 1]->gpu].lost, __ATOMIC_RELAXED))
		return CUDA_ERROR_UNKNOWN;
	*ctx = stack[depth - 1];
	return CUDA_SUCCESS;
}

static CUresult push(CUcontext ctx)
{
	if (depth == STACK)
		return CUDA_ERROR_INVALID_VALUE;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult sim_function_in(CUcontext ctx, CUfunction f, CUfunction *out)
{
	if (sim_handle_is(f, SIM_FUNC))
		return sim_function(f, out);
	SIM_TRY(push(ctx));
	CUresult result = sim_function(f, out);
	depth--;
	return result;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice dev)
{
	if (!out || flags & ~0x3fu)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	CUcontext ctx = calloc(1, sizeof(*ctx));
	if (!ctx || depth == STACK) {
		free(ctx);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = sim_context_create(ctx, dev, flags);
	if (result) {
		free(ctx);
		return result;
	}
	*out = ctx;
	return push(ctx);
}

SIM_EXPORT CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	SIM_ENTER(cuCtxCreate);
	return create(ctx, flags, dev);
}

SIM_EXPORT CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	SIM_ENTER(cuCtxCreate_v2);
	return create(ctx, flags, dev);
}

SIM_EXPORT CUresult cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *affinity, int naffinity, unsigned int flags, CUdevice dev)
{
	SIM_ENTER(cuCtxCreate_v3);
	(void)affinity;
	if (naffinity)
		return CUDA_ERROR_NOT_SUPPORTED;
	return create(ctx, flags, dev);
}

SIM_EXPORT CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
	SIM_ENTER(cuCtxCreate_v4);
	(void)params;
	return create(ctx, flags, dev);
}

static CUresult destroy(CUcontext ctx)
{
	if (!sim_handle_is(ctx, SIM_CTX))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (ctx->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_wait_context(ctx);
	if (!ctx->alive)
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_context_clear(ctx);
	if (depth && stack[depth - 1] == ctx)
		depth--;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	SIM_ENTER(cuCtxDestroy_v2);
	return destroy(ctx);
}

SIM_EXPORT CUresult cuCtxDestroy(CUcontext ctx)
{
	SIM_ENTER(cuCtxDestroy);
	return destroy(ctx);
}

SIM_EXPORT CUresult cuCtxAttach(CUcontext *out, unsigned int flags)
{
	SIM_ENTER(cuCtxAttach);
	SIM_CURRENT(ctx);
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	ctx->retained++;
	*out = ctx;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxDetach(CUcontext ctx)
{
	SIM_ENTER(cuCtxDetach);
	if (sim_handle_is(ctx, SIM_CTX) && !ctx->primary && ctx->retained) {
		ctx->retained--;
		return CUDA_SUCCESS;
	}
	return destroy(ctx);
}

static CUresult push_current(CUcontext ctx)
{
	if (!sim_handle_is(ctx, SIM_CTX))
		return CUDA_ERROR_INVALID_CONTEXT;
	return push(ctx);
}

SIM_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	SIM_ENTER(cuCtxPushCurrent_v2);
	return push_current(ctx);
}

SIM_EXPORT CUresult cuCtxPushCurrent(CUcontext ctx)
{
	SIM_ENTER(cuCtxPushCurrent);
	return push_current(ctx);
}

static CUresult pop_current(CUcontext *out)
{
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (out)
		*out = stack[depth];
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	SIM_ENTER(cuCtxPopCurrent_v2);
	return pop_current(out);
}

SIM_EXPORT CUresult cuCtxPopCurrent(CUcontext *out)
{
	SIM_ENTER(cuCtxPopCurrent);
	return pop_current(out);
}

SIM_EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
	SIM_ENTER(cuCtxSetCurrent);
	if (!ctx) {
		if (depth)
			depth--;
		return CUDA_SUCCESS;
	}
	if (!sim_handle_is(ctx, SIM_CTX))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!depth)
		return push(ctx);
	stack[depth - 1] = ctx;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetCurrent(CUcontext *out)
{
	SIM_ENTER(cuCtxGetCurrent);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	SIM_ENTER(cuCtxGetDevice);
	SIM_CURRENT(ctx);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = ctx->device;
	return CUDA_SUCCESS;
}

/* NULL means the current context in the calls that take one. */
static CUresult given_or_current(CUcontext *ctx)
{
	if (!*ctx)
		return sim_current(ctx);
	return sim_handle_is(*ctx, SIM_CTX) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
	SIM_ENTER(cuCtxGetDevice_v2);
	SIM_TRY(given_or_current(&ctx));
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = ctx->device;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetFlags(unsigned int *flags)
{
	SIM_ENTER(cuCtxGetFlags);
	SIM_CURRENT(ctx);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = ctx->flags;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetFlags(unsigned int flags)
{
	SIM_ENTER(cuCtxSetFlags);
	SIM_CURRENT(ctx);
	ctx->flags = flags;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
	SIM_ENTER(cuCtxGetId);
	SIM_TRY(given_or_current(&ctx));
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = ctx->id;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
	SIM_ENTER(cuCtxGetApiVersion);
	SIM_TRY(given_or_current(&ctx));
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 3020;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	SIM_ENTER(cuCtxGetStreamPriorityRange);
	SIM_CURRENT(ctx);
	(void)ctx;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
	SIM_ENTER(cuCtxSetLimit);
	SIM_CURRENT(ctx);
	if (limit < 0 || limit >= 16)
		return CUDA_ERROR_INVALID_VALUE;
	ctx->limits[limit] = value;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetLimit(size_t *value, int limit)
{
	SIM_ENTER(cuCtxGetLimit);
	SIM_CURRENT(ctx);
	if (!value || limit < 0 || limit >= 16)
		return CUDA_ERROR_INVALID_VALUE;
	*value = ctx->limits[limit];
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetCacheConfig(int *config)
{
	SIM_ENTER(cuCtxGetCacheConfig);
	SIM_CURRENT(ctx);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = ctx->cache_config;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetCacheConfig(int config)
{
	SIM_ENTER(cuCtxSetCacheConfig);
	SIM_CURRENT(ctx);
	ctx->cache_config = config;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSynchronize(void)
{
	SIM_ENTER(cuCtxSynchronize);
	SIM_CURRENT(ctx);
	SIM_TRY(sim_unsafe());
	sim_wait_context(ctx);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	SIM_ENTER(cuCtxSynchronize_v2);
	SIM_TRY(given_or_current(&ctx));
	SIM_TRY(sim_unsafe());
	sim_wait_context(ctx);
	return CUDA_SUCCESS;
}
