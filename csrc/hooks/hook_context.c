/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts, each of which takes device memory.  context.c has the steps and the lock.
 */
#include "shim.h"
#include "time/launch.h"

static CUresult keep(struct gl_gpu *gpu, CUcontext context)
{
	struct gl_block block = {.key = (uintptr_t)context, .space = GL_SPACE_CONTEXT, .count = 1,
				 .ordinal = (uint32_t)gpu->ordinal, .kind = GL_MEM_OVERHEAD};
	return gl_block_put(&block, NULL) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void end(struct gl_gpu *gpu, CUcontext context)
{
	REAL(cuCtxDestroy_v2)(context);
	gl_context_gone(gpu, context);
}

static uint64_t cost_on(const struct gl_gpu *gpu)
{
	return gpu ? gl_load_acquire(&gpu->device->context_bytes) : 0;
}

/* Making a context takes the driver a while, even if it then reports that there is no memory. */
#define CONTEXT_HOOK(name, params, args)                                                                        \
	CUresult name params                                                                                    \
	{                                                                                                       \
		GL_ENTER(name, args);                                                                           \
		struct gl_gpu *gpu_of_dev = gl_gpu_of(dev);                                                     \
		return GL_RETRY_ON_OOM(gpu_of_dev, cost_on(gpu_of_dev), GL_OOM_SLOW_POLL_NS, once_##name args); \
	}

#define KNOWN_FLAGS 0xffu

/* The versions of cuCtxCreate differ in how the context is described. */
#define CREATING(name, params, args)                                                                                   \
	static CUresult once_##name params                                                                             \
	{                                                                                                              \
		struct gl_gpu *gpu = ctx ? gl_gpu_of(dev) : NULL;                                                      \
		struct gl_context_cost cost;                                                                           \
		CUcontext got = NULL, *out = ctx;                                                                      \
		if (!gpu)                                                                                              \
			return gl_device_barred(dev) ? GL_FAILED_RESULT : REAL(name) args;                             \
		gl_lock(&gpu->context_lock);                                                                           \
		CUresult result = CUDA_ERROR_INVALID_VALUE;                                                            \
		if (!gl_overhead_context_begin(gpu, &cost)) {                                                          \
			if (!(flags & ~KNOWN_FLAGS)) { /* else the driver would not make it either */                  \
				gl_count_refusal(gpu, cost.reserved);                                                  \
				gl_context_too_large(gpu, cost.reserved);                                              \
				result = CUDA_ERROR_OUT_OF_MEMORY;                                                     \
			}                                                                                              \
		} else {                                                           \
			ctx = &got; /* which args name */                                                              \
			CUresult real = REAL(name) args;                                                               \
			result = gl_context_made(gpu, &cost, real, got);                                               \
			if (result == CUDA_SUCCESS)                                                                    \
				result = keep(gpu, got);                                                               \
			if (result == CUDA_SUCCESS)                                                                    \
				*out = got;                                                                            \
			else if (real == CUDA_SUCCESS)                                                                 \
				end(gpu, got);                                                                         \
		}                                                                                                      \
		gl_unlock(&gpu->context_lock);                                                                         \
		return result;                                                                                         \
	}                                                                                                              \
	CONTEXT_HOOK(name, params, args)

CREATING(cuCtxCreate, (CUcontext *ctx, unsigned int flags, CUdevice dev), (ctx, flags, dev))
CREATING(cuCtxCreate_v2, (CUcontext *ctx, unsigned int flags, CUdevice dev), (ctx, flags, dev))
CREATING(cuCtxCreate_v3, (CUcontext *ctx, CUexecAffinityParam *affinity, int naffinity, unsigned int flags, CUdevice dev),
	 (ctx, affinity, naffinity, flags, dev))
CREATING(cuCtxCreate_v4, (CUcontext *ctx, CUctxCreateParams *cp, unsigned int flags, CUdevice dev), (ctx, cp, flags, dev))

typedef CUresult context_call(CUcontext ctx);

static CUresult destroy(context_call *real, CUcontext ctx)
{
	struct gl_block block;
	struct gl_gpu *gpu = gl_block_get(GL_SPACE_CONTEXT, (uintptr_t)ctx, &block) ? gl_gpu_of((CUdevice)block.ordinal)
										  : NULL;
	if (!gpu)
		return real(ctx);
	gl_lock(&gpu->context_lock);
	gl_meter_context_going(ctx);
	CUresult result = real(ctx);
	if (gl_context_ended(result))
		gl_context_gone(gpu, ctx);
	else
		gl_meter_context_stays(ctx);
	gl_unlock(&gpu->context_lock);
	return result;
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	GL_ENTER(cuCtxDestroy_v2, (ctx));
	return destroy(REAL(cuCtxDestroy_v2), ctx);
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	GL_ENTER(cuCtxDestroy, (ctx));
	return destroy(REAL(cuCtxDestroy), ctx);
}

static bool count_down(struct gl_block *block, void *left)
{
	*(uint32_t *)left = --block->count;
	return false;
}

CUresult cuCtxAttach(CUcontext *ctx, unsigned int flags)
{
	GL_ENTER(cuCtxAttach, (ctx, flags));
	CUresult result = REAL(cuCtxAttach)(ctx, flags);
	if (result == CUDA_SUCCESS && ctx)
		(void)gl_block_add_reference(GL_SPACE_CONTEXT, (uintptr_t)*ctx);
	return result;
}

/* Ends the context when its last reference is released. */
CUresult cuCtxDetach(CUcontext ctx)
{
	GL_ENTER(cuCtxDetach, (ctx));
	struct gl_block block;
	if (gl_block_get(GL_SPACE_CONTEXT, (uintptr_t)ctx, &block) && block.count <= 1)
		return destroy(REAL(cuCtxDetach), ctx);
	CUresult result = REAL(cuCtxDetach)(ctx);
	if (result == CUDA_SUCCESS)
		(void)gl_block_update(GL_SPACE_CONTEXT, (uintptr_t)ctx, count_down, &block.count);
	return result;
}

static CUresult once_cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	struct gl_gpu *gpu = ctx ? gl_gpu_of(dev) : NULL;
	if (gpu)
		return gl_primary_retain(gpu, ctx);
	return gl_device_barred(dev) ? GL_FAILED_RESULT : REAL(cuDevicePrimaryCtxRetain)(ctx, dev);
}

CONTEXT_HOOK(cuDevicePrimaryCtxRetain, (CUcontext *ctx, CUdevice dev), (ctx, dev))

static CUresult leave_primary(gl_type_cuDevicePrimaryCtxRelease_v2 *real, CUdevice dev)
{
	struct gl_gpu *gpu = gl_gpu_of(dev);
	return gpu ? gl_primary_leave(gpu, real) : real(dev);
}

#define PRIMARY_LEAVE_HOOK(name)                                  \
	CUresult name(CUdevice dev)                               \
	{                                                         \
		GL_ENTER(name, (dev));                            \
		return leave_primary(REAL(name), dev);            \
	}

PRIMARY_LEAVE_HOOK(cuDevicePrimaryCtxRelease_v2)
PRIMARY_LEAVE_HOOK(cuDevicePrimaryCtxRelease)
PRIMARY_LEAVE_HOOK(cuDevicePrimaryCtxReset_v2)
PRIMARY_LEAVE_HOOK(cuDevicePrimaryCtxReset)

/* Stacks, the kernels' heap and their print buffer, which may be gigabytes. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	GL_ENTER(cuCtxSetLimit, (limit, value));
	struct gl_gpu *gpu = gl_gpu_current();
	size_t old;
	if (!gpu || REAL(cuCtxGetLimit)(&old, limit) != CUDA_SUCCESS)
		return REAL(cuCtxSetLimit)(limit, value);
	uint64_t before = gl_overhead_watch(gpu);
	CUresult result = REAL(cuCtxSetLimit)(limit, value);
	if (result != CUDA_SUCCESS || gl_overhead_fits(gpu, before))
		return result;
	REAL(cuCtxSetLimit)(limit, old);
	(void)gl_overhead_measure(gpu);
	gl_add_relaxed(&gpu->device->refused, 1);
	return CUDA_ERROR_OUT_OF_MEMORY;
}
