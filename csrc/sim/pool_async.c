/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream-ordered allocation calls.
 */
#include <stdlib.h>
#include "pool.h"

static CUresult alloc_async(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream handle)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!out || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_implicit(stream));
	if (stream->capture)
		return sim_capture_alloc(stream, bytes, out);
	if (!pool)
		pool = sim_chosen_pool(stream->ctx->device);
	return sim_pool_allocate(out, bytes, pool, stream->ctx);
}

SIM_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	SIM_ENTER(cuMemAllocAsync);
	return alloc_async(dptr, bytes, NULL, stream);
}

SIM_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	SIM_ENTER(cuMemAllocAsync_ptsz);
	return alloc_async(dptr, bytes, NULL, SIM_PTSZ(stream));
}

SIM_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	SIM_ENTER(cuMemAllocFromPoolAsync);
	if (!sim_handle_is(pool, SIM_POOL))
		return CUDA_ERROR_INVALID_VALUE;
	return alloc_async(dptr, bytes, pool, stream);
}

SIM_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return cuMemAllocFromPoolAsync(dptr, bytes, pool, SIM_PTSZ(stream));
}

static CUresult free_async(CUdeviceptr dptr, CUstream handle)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!dptr)
		return CUDA_SUCCESS;
	SIM_TRY(sim_implicit(stream));
	if (stream->capture)
		return sim_capture_free(stream, dptr);
	struct sim_block *block = sim_block_at(dptr);
	if (block && block->kind == SIM_OPENED && block->flags & SIM_FREEABLE) {
		sim_free_block(block);
		return CUDA_SUCCESS;
	}
	if (!block || (block->kind != SIM_POOLED && block->kind != SIM_GRAPHMEM && block->kind != SIM_DEVICE && block->kind != SIM_MANAGED))
		return CUDA_ERROR_INVALID_VALUE;
	if (block->kind == SIM_POOLED || block->kind == SIM_GRAPHMEM)
		return sim_pool_free(block);
	sim_wait_item(stream->ctx, stream->last); /* plain memory: as if freed after a synchronisation */
	block = sim_block_at(dptr);
	if (!block)
		return CUDA_ERROR_INVALID_VALUE;
	sim_free_block(block);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
	SIM_ENTER(cuMemFreeAsync);
	return free_async(dptr, stream);
}

SIM_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream)
{
	return cuMemFreeAsync(dptr, SIM_PTSZ(stream));
}
