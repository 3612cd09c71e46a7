/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory shared with another process by an opaque handle.  The first export moves the block's bytes into a
 * memory file at the same address.  The process that opens the handle maps that file through /proc.  If /proc
 * refuses, it gets zeroed memory of its own: accounting stays right, contents do not.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc.h"

#define IPC_MAGIC 0x6370692d4d495347ull

/* Copy the pages that were touched and nothing else. */
static void copy_touched(char *to, const char *from, uint64_t bytes)
{
	uint64_t page = sim_page_up(1), pages = bytes / page;
	unsigned char *map = malloc(pages);

	if (!map || mincore((void *)(uintptr_t)from, bytes, map)) {
		free(map);
		return;
	}
	for (uint64_t i = 0; i < pages; i++)
		if (map[i] & 1)
			memcpy(to + i * page, from + i * page, page);
	free(map);
}

static CUresult move_to_file(struct sim_block *block)
{
	int fd = memfd_create("gpulimit-sim-ipc", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (off_t)block->mapped_bytes))
		return CUDA_ERROR_UNKNOWN;
	char *copy = mmap(NULL, block->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (copy == MAP_FAILED) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	void *at = (void *)(uintptr_t)block->addr;
	copy_touched(copy, at, block->mapped_bytes);
	munmap(copy, block->mapped_bytes);
	if (mmap(at, block->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		close(fd);
		return CUDA_ERROR_UNKNOWN;
	}
	block->fd = fd;
	return CUDA_SUCCESS;
}

/* Pool memory stays with its pool; plain memory becomes a shared block, whole granules of its own. */
static CUresult share(struct sim_block *block)
{
	uint32_t gpu = block->ctx->gpu;
	uint64_t whole = sim_rounded(gpu, block->bytes);

	if (block->kind != SIM_DEVICE || block->shared_id)
		return CUDA_SUCCESS;
	sim_give(block->ctx, block->bytes);
	SIM_TRY(sim_charge(gpu, whole));
	block->shared_id = sim_share_new(gpu, whole);
	if (!block->shared_id)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sim_machine_lock();
	sim_flags_share(block->shared_id, block->addr, block->bytes);
	sim_machine_unlock();
	return CUDA_SUCCESS;
}

CUresult sim_ipc_export(struct sim_block *block, struct sim_ipc *ipc)
{
	if (block->fd < 0)
		SIM_TRY(move_to_file(block));
	SIM_TRY(share(block));
	*ipc = (struct sim_ipc){
		.magic = IPC_MAGIC, .shared_id = block->shared_id, .bytes = block->bytes, .mapped_bytes = block->mapped_bytes,
		.pid = getpid(), .fd = block->fd, .gpu = block->ctx->gpu,
	};
	return CUDA_SUCCESS;
}

CUresult sim_ipc_open(CUcontext ctx, const struct sim_ipc *ipc, bool of_pool, CUdeviceptr *out)
{
	char path[64];
	uint32_t gpu;
	uint64_t bytes;

	if (ipc->magic != IPC_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	if (ipc->pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that exported it */
	if (ipc->shared_id && !sim_share_join(ipc->shared_id, &gpu, &bytes))
		return CUDA_ERROR_INVALID_HANDLE;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc->pid, ipc->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, ipc->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	uint64_t addr = at == MAP_FAILED ? sim_backing(ipc->mapped_bytes, false) : (uint64_t)(uintptr_t)at;
	struct sim_block block = {
		.addr = addr, .bytes = ipc->bytes, .mapped_bytes = ipc->mapped_bytes, .kind = SIM_OPENED, .ctx = ctx,
		.device = ctx->device, .shared_id = ipc->shared_id, .flags = of_pool ? SIM_FREEABLE : 0, .fd = -1,
	};
	if (!addr || !sim_block_add(&block)) {
		sim_share_leave(ipc->shared_id);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = addr;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuIpcGetMemHandle(sim_ipc_mem *handle, CUdeviceptr dptr)
{
	SIM_ENTER(cuIpcGetMemHandle);
	struct sim_block *block = sim_block_with(dptr);
	struct sim_ipc ipc;

	if (!handle || !block || block->kind != SIM_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_ipc_export(block, &ipc));
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ipc, sizeof(ipc));
	return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *out, const sim_ipc_mem *handle, unsigned int flags)
{
	SIM_CURRENT(ctx);
	struct sim_ipc ipc;

	if (!out || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&ipc, handle, sizeof(ipc));
	return sim_ipc_open(ctx, &ipc, false, out);
}

SIM_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, sim_ipc_mem handle, unsigned int flags)
{
	SIM_ENTER(cuIpcOpenMemHandle_v2);
	return open_handle(out, &handle, flags);
}

SIM_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *out, sim_ipc_mem handle, unsigned int flags)
{
	SIM_ENTER(cuIpcOpenMemHandle);
	return open_handle(out, &handle, flags);
}

SIM_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	SIM_ENTER(cuIpcCloseMemHandle);
	struct sim_block *block = sim_block_at(dptr);

	if (!block || block->kind != SIM_OPENED)
		return CUDA_ERROR_INVALID_VALUE;
	sim_free_block(block);
	return CUDA_SUCCESS;
}
