/* SPDX-License-Identifier: Apache-2.0
 *
 * Green contexts: parts of a device's processors inside the primary context, which each of them retains.  One takes
 * a few MiB (4 on an H200), which are measured afterwards.  Memory allocated under one survives it (seen on a card), so
 * it then belongs to the primary context.
 */
#include "process/limits.h"
#include "shim.h"
#include "time/launch.h"

/* Makes the primary context first if there is none, so that it is charged, and undone on failure, like any other. */
static CUresult with_primary(struct gl_gpu *gpu, CUgreenCtx *gctx, CUdevResourceDesc desc, unsigned int flags)
{
	CUcontext primary;
	CUresult result = gl_primary_retain(gpu, &primary);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuGreenCtxCreate)(gctx, desc, gpu->ordinal, flags);
	(void)gl_primary_leave(gpu, REAL(cuDevicePrimaryCtxRelease_v2));
	return result;
}

CUresult cuGreenCtxCreate(CUgreenCtx *gctx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	GL_ENTER(cuGreenCtxCreate, (gctx, desc, dev, flags));
	struct gl_gpu *gpu = gctx && desc ? gl_gpu_of(dev) : NULL;
	CUgreenCtx got = NULL;
	CUcontext context = NULL;
	if (!gpu)
		return gl_device_barred(dev) ? GL_FAILED_RESULT : REAL(cuGreenCtxCreate)(gctx, desc, dev, flags);
	CUresult result = with_primary(gpu, &got, desc, flags);
	if (result != CUDA_SUCCESS)
		return result;
	(void)gl_overhead_measure(gpu);
	if (gl_over_limit(gpu)) {
		REAL(cuGreenCtxDestroy)(got);
		(void)gl_overhead_measure(gpu);
		gl_add_relaxed(&gpu->device->refused, 1);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* Recorded by handle, so that the device is known when it is destroyed. */
	if (REAL(cuCtxFromGreenCtx)(&context, got) == CUDA_SUCCESS) {
		struct gl_block block = {.key = (uintptr_t)got, .space = GL_SPACE_GREEN, .other = (uintptr_t)context,
					 .ordinal = (uint32_t)gpu->ordinal, .kind = GL_MEM_OVERHEAD};
		(void)gl_block_put(&block, NULL);
	}
	*gctx = got;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx gctx)
{
	GL_ENTER(cuGreenCtxDestroy, (gctx));
	struct gl_block block;
	struct gl_gpu *gpu = gl_block_get(GL_SPACE_GREEN, (uintptr_t)gctx, &block) ? gl_gpu_of((CUdevice)block.ordinal)
										 : NULL;
	if (!gpu)
		return REAL(cuGreenCtxDestroy)(gctx);
	gl_lock(&gpu->context_lock);
	bool before = gl_primary_active(gpu);
	gl_meter_context_going((CUcontext)(uintptr_t)block.other);
	CUresult result = REAL(cuGreenCtxDestroy)(gctx);
	if (result == CUDA_SUCCESS) {
		gl_meter_context_gone((CUcontext)(uintptr_t)block.other);
		(void)gl_block_take(GL_SPACE_GREEN, (uintptr_t)gctx, &block);
		gl_context_inherit((CUcontext)(uintptr_t)block.other, gpu->primary);
		if (before && !gl_primary_active(gpu))
			gl_context_gone(gpu, gpu->primary);
		else
			gl_overhead_mark(gpu);
	} else {
		gl_meter_context_stays((CUcontext)(uintptr_t)block.other);
	}
	gl_unlock(&gpu->context_lock);
	return result;
}
