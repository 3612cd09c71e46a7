/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that programs make in passing and that change nothing here: peers, stream attributes, hints.
 */
#include <string.h>

#include "sim.h"

SIM_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	SIM_ENTER(cuCtxEnablePeerAccess);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_handle_is(peer, SIM_CTX) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	SIM_ENTER(cuCtxDisablePeerAccess);
	return sim_handle_is(peer, SIM_CTX) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to)
{
	SIM_ENTER(cuDeviceGetP2PAttribute);
	if (!value || attribute < 1 || attribute > 5)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(from) || !sim_device_ok(to) || from == to)
		return CUDA_ERROR_INVALID_DEVICE;
	*value = attribute == 1 ? 0 : 1;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetExecAffinitySupport(int *value, int type, CUdevice dev)
{
	SIM_ENTER(cuDeviceGetExecAffinitySupport);
	if (!value || type)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*value = 0;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, int format, unsigned int channels, CUdevice dev)
{
	SIM_ENTER(cuDeviceGetTexture1DLinearMaxWidth);
	(void)format;
	(void)channels;
	if (!width)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*width = 1 << 28;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxResetPersistingL2Cache(void)
{
	SIM_ENTER(cuCtxResetPersistingL2Cache);
	SIM_CURRENT(ctx);
	(void)ctx;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetSharedMemConfig(int *config)
{
	SIM_ENTER(cuCtxGetSharedMemConfig);
	SIM_CURRENT(ctx);
	(void)ctx;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = 1;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetSharedMemConfig(int config)
{
	SIM_ENTER(cuCtxSetSharedMemConfig);
	SIM_CURRENT(ctx);
	(void)ctx;
	(void)config;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	SIM_ENTER(cuFlushGPUDirectRDMAWrites);
	(void)target;
	(void)scope;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetAttribute(CUstream handle, int attribute, void *value)
{
	SIM_ENTER(cuStreamGetAttribute);
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	memset(value, 0, 64);
	if (attribute == 8)
		*(int *)value = stream->priority;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetAttribute_ptsz(CUstream stream, int attribute, void *value)
{
	return cuStreamGetAttribute(SIM_PTSZ(stream), attribute, value);
}

SIM_EXPORT CUresult cuStreamSetAttribute(CUstream handle, int attribute, const void *value)
{
	SIM_ENTER(cuStreamSetAttribute);
	CUstream stream;

	(void)attribute;
	SIM_TRY(sim_stream(handle, &stream));
	return value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuStreamSetAttribute_ptsz(CUstream stream, int attribute, const void *value)
{
	return cuStreamSetAttribute(SIM_PTSZ(stream), attribute, value);
}

SIM_EXPORT CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
	SIM_ENTER(cuStreamCopyAttributes);
	SIM_TRY(sim_stream(from, &from));
	return sim_stream(to, &to);
}

SIM_EXPORT CUresult cuStreamCopyAttributes_ptsz(CUstream to, CUstream from)
{
	return cuStreamCopyAttributes(SIM_PTSZ(to), SIM_PTSZ(from));
}

SIM_EXPORT CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr dptr, size_t length, unsigned int flags)
{
	SIM_ENTER(cuStreamAttachMemAsync);
	CUstream stream;
	struct sim_block *block = sim_block_with(dptr);

	(void)length;
	(void)flags;
	SIM_TRY(sim_stream(handle, &stream));
	return block && block->kind == SIM_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr dptr, size_t length, unsigned int flags)
{
	return cuStreamAttachMemAsync(SIM_PTSZ(stream), dptr, length, flags);
}

SIM_EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, int attribute, void *value)
{
	SIM_ENTER(cuGraphKernelNodeGetAttribute);
	(void)attribute;
	if (!value || !sim_handle_is(node, SIM_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	memset(value, 0, 64);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, int attribute, const void *value)
{
	SIM_ENTER(cuGraphKernelNodeSetAttribute);
	(void)attribute;
	return value && sim_handle_is(node, SIM_NODE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
	SIM_ENTER(cuGraphKernelNodeCopyAttributes);
	return sim_handle_is(to, SIM_NODE) && sim_handle_is(from, SIM_NODE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuOccupancyMaxPotentialBlockSize(
	int *grid, int *block, CUfunction f, void *size_of_block, size_t shared_bytes, int limit)
{
	SIM_ENTER(cuOccupancyMaxPotentialBlockSize);
	(void)size_of_block;
	(void)shared_bytes;
	SIM_TRY(sim_function(f, &f));
	if (!grid || !block)
		return CUDA_ERROR_INVALID_VALUE;
	*block = limit > 0 && limit < 1024 ? limit : 1024;
	*grid = (int)sim_model_of(f->ctx->gpu)->sm_count * (2048 / *block);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(
	int *grid, int *block, CUfunction f, void *size_of_block, size_t shared_bytes, int limit, unsigned int flags)
{
	(void)flags;
	return cuOccupancyMaxPotentialBlockSize(grid, block, f, size_of_block, shared_bytes, limit);
}

SIM_EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction f, int blocks, int block_size)
{
	SIM_ENTER(cuOccupancyAvailableDynamicSMemPerBlock);
	(void)block_size;
	SIM_TRY(sim_function(f, &f));
	if (!bytes || blocks <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = 49152 / (size_t)blocks;
	return CUDA_SUCCESS;
}
