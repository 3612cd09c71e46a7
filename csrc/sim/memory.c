/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain, pitched and managed memory of the device.
 *
 * Managed memory takes room on the card only where it was touched there (set, copied to, prefetched),
 * and never fails for lack of room: a card that is full keeps the rest on the host.
 */
#include <unistd.h>

#include "sim.h"

static CUresult allocate(CUdeviceptr *out, uint64_t bytes, bool low)
{
	SIM_CURRENT(ctx);
	SIM_TRY(sim_unsafe());
	if (!out || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > sim_model_of(ctx->gpu)->total_bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	SIM_TRY(sim_take(ctx, bytes));
	uint64_t mapped = sim_page_up(bytes), at = sim_backing(mapped, low);
	struct sim_block block = {
		.addr = at, .bytes = bytes, .mapped_bytes = mapped, .kind = SIM_DEVICE, .ctx = ctx, .device = ctx->device, .fd = -1,
	};
	if (!at || !sim_block_add(&block)) {
		sim_unback(at, mapped);
		sim_give(ctx, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = at;
	return CUDA_SUCCESS;
}

/* Whatever kind of block: give back what it holds of the card and of host memory, and forget it. */
void sim_free_block(struct sim_block *block)
{
	if (block->kind == SIM_POOLED || block->kind == SIM_GRAPHMEM) {
		sim_pool_free(block);
		return;
	}
	if (block->shared_id)
		sim_share_leave(block->shared_id);
	else if (block->kind == SIM_DEVICE)
		sim_give(block->ctx, block->bytes);
	else if (block->kind == SIM_MANAGED)
		sim_uncharge(block->ctx->gpu, block->resident);
	if (block->fd >= 0)
		close(block->fd);
	if (block->kind != SIM_REGISTERED)
		sim_unback(block->addr, block->mapped_bytes);
	sim_block_drop(block);
}

SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes)
{
	SIM_ENTER(cuMemAlloc_v2);
	return allocate(dptr, bytes, false);
}

SIM_EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytes)
{
	SIM_ENTER(cuMemAlloc);
	CUdeviceptr got = 0;

	if (!dptr)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(allocate(&got, bytes, true));
	*dptr = (CUdeviceptr_v1)got;
	return CUDA_SUCCESS;
}

static CUresult allocate_pitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element, bool low)
{
	if (!out || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	size_t row = (width + 511) / 512 * 512;
	if (row < width || height > SIZE_MAX / row)
		return CUDA_ERROR_OUT_OF_MEMORY;
	SIM_TRY(allocate(out, row * height, low));
	*pitch = row;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	SIM_ENTER(cuMemAllocPitch_v2);
	return allocate_pitch(dptr, pitch, width, height, element, false);
}

SIM_EXPORT CUresult cuMemAllocPitch(
	CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element)
{
	SIM_ENTER(cuMemAllocPitch);
	CUdeviceptr got = 0;
	size_t row = 0;

	if (!dptr || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(allocate_pitch(&got, &row, width, height, element, true));
	*dptr = (CUdeviceptr_v1)got;
	*pitch = (unsigned int)row;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags)
{
	SIM_ENTER(cuMemAllocManaged);
	SIM_CURRENT(ctx);
	SIM_TRY(sim_unsafe());
	if (!dptr || !bytes || (flags != 1 && flags != 2))
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t mapped = sim_page_up(bytes), at = sim_backing(mapped, false);
	struct sim_block block = {
		.addr = at, .bytes = bytes, .mapped_bytes = mapped, .kind = SIM_MANAGED, .ctx = ctx, .device = ctx->device,
		.flags = flags, .fd = -1,
	};
	if (!at || !sim_block_add(&block)) {
		sim_unback(at, mapped);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*dptr = at;
	return CUDA_SUCCESS;
}

CUresult sim_touch_managed(uint64_t addr, uint64_t bytes)
{
	struct sim_block *block = sim_block_with(addr);

	if (!block || block->kind != SIM_MANAGED)
		return CUDA_SUCCESS;
	uint64_t most = sim_rounded(block->ctx->gpu, block->bytes);
	uint64_t want = block->resident + sim_rounded(block->ctx->gpu, bytes);
	if (want > most)
		want = most;
	if (want > block->resident && sim_charge(block->ctx->gpu, want - block->resident) == CUDA_SUCCESS)
		block->resident = want;
	return CUDA_SUCCESS;
}

/* Freeing waits for the context's work, as on a real card. */
static CUresult release(CUdeviceptr dptr)
{
	SIM_CURRENT(ctx);
	SIM_TRY(sim_unsafe());
	if (!dptr)
		return CUDA_SUCCESS;
	struct sim_block *block = sim_block_at(dptr);
	if (!block || block->kind == SIM_HOST || block->kind == SIM_REGISTERED || block->kind == SIM_MAPPED ||
		block->kind == SIM_RESERVED || (block->kind == SIM_OPENED && !(block->flags & SIM_FREEABLE)))
		return CUDA_ERROR_INVALID_VALUE;
	sim_wait_context(block->ctx ? block->ctx : ctx);
	block = sim_block_at(dptr); /* the wait let go of the lock */
	if (!block)
		return CUDA_ERROR_INVALID_VALUE;
	sim_free_block(block);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	SIM_ENTER(cuMemFree_v2);
	return release(dptr);
}

SIM_EXPORT CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
	SIM_ENTER(cuMemFree);
	return release(dptr);
}

/* Either address may be missing, as on a card. */
static CUresult get_info(uint64_t *free_bytes, uint64_t *total)
{
	SIM_CURRENT(ctx);
	struct sim_model *m = sim_model_of(ctx->gpu);

	sim_machine_lock();
	sim_sweep(true);
	*total = m->total_bytes - m->reserved_bytes;
	*free_bytes = *total - sim_gpu_used(ctx->gpu);
	sim_machine_unlock();
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	SIM_ENTER(cuMemGetInfo_v2);
	uint64_t f, t;

	SIM_TRY(get_info(&f, &t));
	if (free_bytes)
		*free_bytes = f;
	if (total)
		*total = t;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
	SIM_ENTER(cuMemGetInfo);
	uint64_t f, t;

	SIM_TRY(get_info(&f, &t));
	if (free_bytes)
		*free_bytes = f > UINT32_MAX ? UINT32_MAX : (unsigned int)f;
	if (total)
		*total = t > UINT32_MAX ? UINT32_MAX : (unsigned int)t;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr dptr)
{
	SIM_ENTER(cuMemGetAddressRange_v2);
	struct sim_block *block = sim_block_with(dptr);

	if (!block || block->kind == SIM_RESERVED)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = block->addr;
	if (bytes)
		*bytes = block->bytes;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *bytes, CUdeviceptr_v1 dptr)
{
	SIM_ENTER(cuMemGetAddressRange);
	struct sim_block *block = sim_block_with(dptr);

	if (!block || block->addr > UINT32_MAX)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = (CUdeviceptr_v1)block->addr;
	if (bytes)
		*bytes = (unsigned int)block->bytes;
	return CUDA_SUCCESS;
}

static void prefetch(CUdeviceptr dptr, size_t bytes, bool to_device)
{
	struct sim_block *block = sim_block_with(dptr);

	if (to_device) {
		sim_touch_managed(dptr, bytes);
	} else if (block && block->kind == SIM_MANAGED) {
		uint64_t gone = sim_rounded(block->ctx->gpu, bytes);
		gone = gone < block->resident ? gone : block->resident;
		block->resident -= gone;
		sim_uncharge(block->ctx->gpu, gone);
	}
}

SIM_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr dptr, size_t bytes, CUdevice dst, CUstream handle)
{
	SIM_ENTER(cuMemPrefetchAsync);
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!sim_range_ok(dptr, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	prefetch(dptr, bytes, dst >= 0);
	return sim_submit(stream, bytes * 1000 / sim_model_of(stream->ctx->gpu)->copy_bytes_per_us, NULL);
}

SIM_EXPORT CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr dptr, size_t bytes, CUdevice dst, CUstream stream)
{
	return cuMemPrefetchAsync(dptr, bytes, dst, SIM_PTSZ(stream));
}

SIM_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr dptr, size_t bytes, CUmemLocation where, unsigned int flags, CUstream stream)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return cuMemPrefetchAsync(dptr, bytes, where.type == CU_MEM_LOCATION_TYPE_DEVICE ? where.id : -1, stream);
}

SIM_EXPORT CUresult cuMemPrefetchAsync_v2_ptsz(
	CUdeviceptr dptr, size_t bytes, CUmemLocation where, unsigned int flags, CUstream stream)
{
	return cuMemPrefetchAsync_v2(dptr, bytes, where, flags, SIM_PTSZ(stream));
}

SIM_EXPORT CUresult cuMemAdvise(CUdeviceptr dptr, size_t bytes, int advice, CUdevice device)
{
	SIM_ENTER(cuMemAdvise);
	(void)advice;
	(void)device;
	return sim_range_ok(dptr, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr dptr, size_t bytes, int advice, CUmemLocation where)
{
	return cuMemAdvise(dptr, bytes, advice, where.id);
}
