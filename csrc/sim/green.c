/* SPDX-License-Identifier: Apache-2.0
 *
 * Green contexts: here each is a context of its own, with the full cost of one and its own queue; how
 * many multiprocessors it was given makes no difference to time.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct CUgreenCtx_st {
	CUcontext ctx;
};
struct CUdevResourceDesc_st {
	unsigned int count;
};
struct resource { /* CUdevResource */
	int type; /* 1: multiprocessors */
	unsigned char padding[92];
	unsigned int values[10]; /* of them: how many, least partition, alignment */
	void *next;
};

static CUresult fill(struct resource *out, CUdevice dev, int type)
{
	if (!out || type != 1)
		return CUDA_ERROR_INVALID_VALUE;
	memset(out, 0, sizeof(*out));
	out->type = type;
	out->values[0] = (unsigned int)sim_model_of(sim_device_gpu[dev])->sm_count;
	out->values[1] = out->values[2] = 8;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetDevResource(CUdevice dev, struct resource *out, int type)
{
	SIM_ENTER(cuDeviceGetDevResource);
	return sim_device_ok(dev) ? fill(out, dev, type) : CUDA_ERROR_INVALID_DEVICE;
}

SIM_EXPORT CUresult cuCtxGetDevResource(CUcontext ctx, struct resource *out, int type)
{
	SIM_ENTER(cuCtxGetDevResource);
	return sim_handle_is(ctx, SIM_CTX) ? fill(out, ctx->device, type) : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, struct resource *resources, unsigned int count)
{
	SIM_ENTER(cuDevResourceGenerateDesc);
	static struct CUdevResourceDesc_st everything = { 1 };

	if (!out || !resources || !count)
		return CUDA_ERROR_INVALID_VALUE;
	*out = &everything;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	SIM_ENTER(cuGreenCtxCreate);
	if (!out || !desc || flags != 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	CUgreenCtx green = calloc(1, sizeof(*green));
	CUcontext ctx = calloc(1, sizeof(*ctx));
	CUresult result = green && ctx ? sim_context_create(ctx, dev, 0) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result) {
		free(green);
		free(ctx);
		return result;
	}
	green->ctx = ctx;
	sim_handle_add(green, SIM_GREEN);
	*out = green;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	SIM_ENTER(cuGreenCtxDestroy);
	if (!sim_handle_is(green, SIM_GREEN))
		return CUDA_ERROR_INVALID_HANDLE;
	sim_handle_drop(green);
	sim_wait_context(green->ctx);
	if (green->ctx->alive)
		sim_context_clear(green->ctx);
	free(green);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green)
{
	SIM_ENTER(cuCtxFromGreenCtx);
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(green, SIM_GREEN))
		return CUDA_ERROR_INVALID_HANDLE;
	*ctx = green->ctx;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags, int priority)
{
	SIM_ENTER(cuGreenCtxStreamCreate);
	if (!out || flags != CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(green, SIM_GREEN))
		return CUDA_ERROR_INVALID_HANDLE;
	sim_stream_new(green->ctx, flags, priority, out);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *green)
{
	SIM_ENTER(cuStreamGetGreenCtx);
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!green)
		return CUDA_ERROR_INVALID_VALUE;
	*green = NULL;
	return CUDA_SUCCESS;
}
