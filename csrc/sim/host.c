/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinned host memory, which takes no room on the card, and questions about pointers.
 */
#include "sim.h"

static CUresult allocate(void **out, uint64_t bytes, unsigned int flags)
{
	SIM_CURRENT(ctx);
	SIM_TRY(sim_unsafe());
	if (!out || !bytes || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t mapped = sim_page_up(bytes), at = sim_backing(mapped, false);
	struct sim_block block = {
		.addr = at, .bytes = bytes, .mapped_bytes = mapped, .kind = SIM_HOST, .ctx = ctx, .device = ctx->device,
		.flags = flags, .fd = -1,
	};
	if (!at || !sim_block_add(&block)) {
		sim_unback(at, mapped);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = (void *)(uintptr_t)at;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocHost_v2(void **p, size_t bytes)
{
	SIM_ENTER(cuMemAllocHost_v2);
	return allocate(p, bytes, 0);
}

SIM_EXPORT CUresult cuMemAllocHost(void **p, unsigned int bytes)
{
	SIM_ENTER(cuMemAllocHost);
	return allocate(p, bytes, 0);
}

SIM_EXPORT CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned int flags)
{
	SIM_ENTER(cuMemHostAlloc);
	return allocate(p, bytes, flags);
}

SIM_EXPORT CUresult cuMemFreeHost(void *p)
{
	SIM_ENTER(cuMemFreeHost);
	SIM_CURRENT(ctx);
	SIM_TRY(sim_unsafe());
	struct sim_block *block = sim_block_at((uintptr_t)p);

	if (!block || block->kind != SIM_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	sim_wait_context(ctx);
	block = sim_block_at((uintptr_t)p);
	if (!block)
		return CUDA_ERROR_INVALID_VALUE;
	sim_free_block(block);
	return CUDA_SUCCESS;
}

static CUresult do_register(void *p, size_t bytes, unsigned int flags)
{
	SIM_CURRENT(ctx);
	SIM_TRY(sim_unsafe());
	if (!p || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_block_with((uintptr_t)p))
		return SIM_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	struct sim_block block = {
		.addr = (uintptr_t)p, .bytes = bytes, .kind = SIM_REGISTERED, .ctx = ctx, .device = ctx->device, .flags = flags, .fd = -1,
	};
	return sim_block_add(&block) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned int flags)
{
	SIM_ENTER(cuMemHostRegister_v2);
	return do_register(p, bytes, flags);
}

SIM_EXPORT CUresult cuMemHostRegister(void *p, size_t bytes, unsigned int flags)
{
	SIM_ENTER(cuMemHostRegister);
	return do_register(p, bytes, flags);
}

SIM_EXPORT CUresult cuMemHostUnregister(void *p)
{
	SIM_ENTER(cuMemHostUnregister);
	SIM_TRY(sim_unsafe());
	struct sim_block *block = sim_block_at((uintptr_t)p);

	if (!block || block->kind != SIM_REGISTERED)
		return SIM_ERROR_HOST_MEMORY_NOT_REGISTERED;
	sim_free_block(block);
	return CUDA_SUCCESS;
}

static bool is_host(const struct sim_block *block)
{
	return block->kind == SIM_HOST || block->kind == SIM_REGISTERED;
}

SIM_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *p, unsigned int flags)
{
	SIM_ENTER(cuMemHostGetDevicePointer_v2);
	struct sim_block *block = sim_block_with((uintptr_t)p);

	if (!dptr || flags || !block || !is_host(block))
		return CUDA_ERROR_INVALID_VALUE;
	*dptr = (CUdeviceptr)(uintptr_t)p;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemHostGetFlags(unsigned int *flags, void *p)
{
	SIM_ENTER(cuMemHostGetFlags);
	struct sim_block *block = sim_block_with((uintptr_t)p);

	if (!flags || !block || !is_host(block))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = block->flags;
	return CUDA_SUCCESS;
}

static CUresult attribute_of(const struct sim_block *block, CUdeviceptr ptr, int attribute, void *data)
{
	switch (attribute) {
	case SIM_PTR_CONTEXT: *(CUcontext *)data = block->ctx; return CUDA_SUCCESS;
	case SIM_PTR_MEMORY_TYPE:
		*(unsigned int *)data = is_host(block) ? SIM_MEMORY_HOST : SIM_MEMORY_DEVICE;
		return CUDA_SUCCESS;
	case SIM_PTR_DEVICE_POINTER: *(CUdeviceptr *)data = ptr; return CUDA_SUCCESS;
	case SIM_PTR_HOST_POINTER:
		if (!is_host(block) && block->kind != SIM_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = (void *)(uintptr_t)ptr;
		return CUDA_SUCCESS;
	case SIM_PTR_SYNC_MEMOPS: *(unsigned int *)data = 0; return CUDA_SUCCESS;
	case SIM_PTR_BUFFER_ID: *(unsigned long long *)data = block->id; return CUDA_SUCCESS;
	case SIM_PTR_IS_MANAGED: *(unsigned int *)data = block->kind == SIM_MANAGED; return CUDA_SUCCESS;
	case SIM_PTR_DEVICE_ORDINAL: *(int *)data = block->device; return CUDA_SUCCESS;
	case SIM_PTR_IS_LEGACY_CUDA_IPC_CAPABLE: *(unsigned int *)data = block->kind == SIM_DEVICE; return CUDA_SUCCESS;
	case SIM_PTR_RANGE_START_ADDR: *(CUdeviceptr *)data = block->addr; return CUDA_SUCCESS;
	case SIM_PTR_RANGE_SIZE: *(size_t *)data = block->bytes; return CUDA_SUCCESS;
	case SIM_PTR_MAPPED: *(unsigned int *)data = block->kind != SIM_RESERVED; return CUDA_SUCCESS;
	case SIM_PTR_ALLOWED_HANDLE_TYPES: *(uint64_t *)data = block->kind == SIM_MAPPED; return CUDA_SUCCESS;
	case SIM_PTR_ACCESS_FLAGS: *(int *)data = 3; return CUDA_SUCCESS;
	case SIM_PTR_MEMPOOL_HANDLE:
		*(CUmemoryPool *)data = block->kind == SIM_POOLED ? block->owner : NULL;
		return CUDA_SUCCESS;
	default: return CUDA_ERROR_NOT_SUPPORTED;
	}
}

SIM_EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr)
{
	SIM_ENTER(cuPointerGetAttribute);
	struct sim_block *block = sim_block_with(ptr);

	if (!data || !block)
		return CUDA_ERROR_INVALID_VALUE;
	return attribute_of(block, ptr, attribute, data);
}

/* For an unknown pointer every attribute reads as zero and the call succeeds. */
SIM_EXPORT CUresult cuPointerGetAttributes(unsigned int n, int *attributes, void **data, CUdeviceptr ptr)
{
	SIM_ENTER(cuPointerGetAttributes);
	static const struct sim_block nothing = { .device = -2, .fd = -1 };
	struct sim_block *block = sim_block_with(ptr);

	if (!n || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < n; i++) {
		if (block)
			attribute_of(block, ptr, attributes[i], data[i]);
		else if (attributes[i] == SIM_PTR_MEMORY_TYPE)
			*(unsigned int *)data[i] = 0;
		else
			attribute_of(&nothing, 0, attributes[i], data[i]);
	}
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr ptr)
{
	SIM_ENTER(cuPointerSetAttribute);
	if (!value || !sim_block_with(ptr) || attribute != SIM_PTR_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}
