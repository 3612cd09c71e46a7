/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory management: physical handles, reserved addresses, mappings.  A handle's memory lives
 * until its last reference, its last mapping and, if it was exportable, the last process that imported
 * it are gone.  All handles of a process lie in one memory file; an exportable one has a file of its own,
 * whose descriptor is what is exported, and is a shared block of the machine from the start.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

#define GRANULARITY (2ull << 20)

struct physical {
	CUmemAllocationProp prop;
	uint32_t gpu;
	uint64_t size, offset, shared_id;
	unsigned int references, mappings;
	int fd; /* of its own; -1: in the common file */
};
static int common_fd = -1;
static uint64_t common_end;

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	struct physical *p = (struct physical *)(uintptr_t)handle;

	return sim_handle_is(p, SIM_VMM) ? p : NULL;
}

static bool on_device(const struct physical *p)
{
	return p->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

static bool find_room(struct physical *p)
{
	char name[64];

	if (p->shared_id) {
		snprintf(name, sizeof(name), "gpulimit-sim-vmm-%llu", (unsigned long long)p->shared_id);
		p->fd = memfd_create(name, MFD_CLOEXEC);
		return p->fd >= 0 && !ftruncate(p->fd, (off_t)p->size);
	}
	if (common_fd < 0)
		common_fd = memfd_create("gpulimit-sim-memory", MFD_CLOEXEC);
	if (common_fd < 0 || ftruncate(common_fd, (off_t)(common_end + p->size)))
		return false;
	p->offset = common_end;
	common_end += p->size;
	return true;
}

static void drop_if_unused(struct physical *p)
{
	if (p->references || p->mappings)
		return;
	if (p->shared_id)
		sim_share_leave(p->shared_id);
	else if (on_device(p))
		sim_uncharge(p->gpu, p->size);
	if (p->fd >= 0)
		close(p->fd);
	else
		fallocate(common_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->offset, (off_t)p->size);
	sim_handle_drop(p);
	free(p);
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	if (!prop || (prop->type != 1 && prop->type != 2))
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		return sim_device_ok(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	return prop->location.type >= CU_MEM_LOCATION_TYPE_HOST && prop->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT ?
		CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuMemCreate(
	CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	SIM_ENTER(cuMemCreate);
	SIM_TRY(check_prop(prop));
	if (!handle || !size || size % GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->requestedHandleTypes & ~1)
		return CUDA_ERROR_NOT_SUPPORTED;
	SIM_TRY(sim_unsafe());
	struct physical *p = calloc(1, sizeof(*p));
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*p = (struct physical){ .prop = *prop, .size = size, .references = 1, .fd = -1 };
	p->gpu = on_device(p) ? sim_device_gpu[prop->location.id] : 0;
	CUresult result = on_device(p) ? sim_charge(p->gpu, size) : CUDA_SUCCESS;
	if (result) {
		free(p);
		return result;
	}
	if (on_device(p) && prop->requestedHandleTypes & 1)
		p->shared_id = sim_share_new(p->gpu, size);
	sim_handle_add(p, SIM_VMM);
	if (!find_room(p)) {
		p->references = 0;
		drop_if_unused(p);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*handle = (uintptr_t)p;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	SIM_ENTER(cuMemRelease);
	struct physical *p = physical_of(handle);

	if (!p || !p->references)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_unsafe());
	p->references--;
	drop_if_unused(p);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
	SIM_ENTER(cuMemAddressReserve);
	if (!out || !size || size % GRANULARITY || flags || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < GRANULARITY)
		alignment = GRANULARITY;
	char *raw = mmap((void *)(uintptr_t)hint, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (raw == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	uintptr_t start = ((uintptr_t)raw + alignment - 1) / alignment * alignment;
	size_t before = start - (uintptr_t)raw;
	if (before)
		munmap(raw, before);
	munmap((void *)(start + size), alignment - before);
	struct sim_block block = { .addr = start, .bytes = size, .mapped_bytes = size, .kind = SIM_RESERVED, .fd = -1 };
	if (!sim_block_add(&block))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = start;
	return CUDA_SUCCESS;
}

struct range {
	uint64_t addr, bytes;
};

static bool mapped_inside(const struct sim_block *b, const void *what)
{
	const struct range *r = what;

	return b->kind == SIM_MAPPED && b->addr < r->addr + r->bytes && r->addr < b->addr + b->bytes;
}

static bool reservation_over(const struct sim_block *b, const void *what)
{
	const struct range *r = what;

	return b->kind == SIM_RESERVED && b->addr <= r->addr && r->addr + r->bytes <= b->addr + b->bytes;
}

SIM_EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	SIM_ENTER(cuMemAddressFree);
	struct range range = { ptr, size };
	struct sim_block *block = sim_block_first(reservation_over, &range);

	if (!block || block->addr != ptr || block->bytes != size || sim_block_first(mapped_inside, &range))
		return CUDA_ERROR_INVALID_VALUE;
	sim_unback(ptr, size);
	sim_block_drop(block);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemMap(
	CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	SIM_ENTER(cuMemMap);
	struct physical *p = physical_of(handle);
	struct range range = { ptr, size };

	if (!p || !size || size % GRANULARITY || offset % GRANULARITY || flags || offset + size > p->size || ptr % GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_block_first(reservation_over, &range) || sim_block_first(mapped_inside, &range))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_unsafe());
	int fd = p->fd >= 0 ? p->fd : common_fd;
	void *at = mmap((void *)(uintptr_t)ptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)(p->offset + offset));
	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct sim_block block = {
		.addr = ptr, .bytes = size, .kind = SIM_MAPPED, .owner = p, .offset = offset, .fd = -1,
		.shared_id = p->shared_id,
		.device = on_device(p) ? p->prop.location.id : -1,
	};
	if (!sim_block_add(&block))
		return CUDA_ERROR_OUT_OF_MEMORY;
	p->mappings++;
	return CUDA_SUCCESS;
}

static void unmap(struct sim_block *block)
{
	struct physical *p = block->owner;

	mmap((void *)(uintptr_t)block->addr, block->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	sim_block_drop(block);
	p->mappings--;
	drop_if_unused(p);
}

/* The range must consist of whole mappings, any number of them. */
SIM_EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	SIM_ENTER(cuMemUnmap);
	struct range range = { ptr, size };

	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	for (uint64_t at = ptr; at < ptr + size;) {
		struct sim_block *block = sim_block_with(at);
		if (!block || block->kind != SIM_MAPPED || block->addr != at || at + block->bytes > ptr + size)
			return CUDA_ERROR_INVALID_VALUE;
		at += block->bytes;
	}
	SIM_TRY(sim_unsafe());
	for (struct sim_block *block; (block = sim_block_first(mapped_inside, &range));)
		unmap(block);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	SIM_ENTER(cuMemSetAccess);
	if (!desc || !count || !size || !sim_range_ok(ptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	SIM_ENTER(cuMemGetAccess);
	struct sim_block *block = sim_block_with(ptr);

	if (!flags || !location || !block || block->kind != SIM_MAPPED)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = 3;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option)
{
	SIM_ENTER(cuMemGetAllocationGranularity);
	SIM_TRY(check_prop(prop));
	if (!granularity || option < 0 || option > 1)
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = GRANULARITY;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	SIM_ENTER(cuMemGetAllocationPropertiesFromHandle);
	struct physical *p = physical_of(handle);

	if (!prop || !p)
		return CUDA_ERROR_INVALID_VALUE;
	*prop = p->prop;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	SIM_ENTER(cuMemRetainAllocationHandle);
	struct sim_block *block = sim_block_with((uintptr_t)addr);

	if (!handle || !block || block->kind != SIM_MAPPED)
		return CUDA_ERROR_INVALID_VALUE;
	struct physical *p = block->owner;
	p->references++;
	*handle = (uintptr_t)p;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemExportToShareableHandle(
	void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)
{
	SIM_ENTER(cuMemExportToShareableHandle);
	struct physical *p = physical_of(handle);

	if (!out || !p || flags || type != 1 || !p->shared_id)
		return CUDA_ERROR_INVALID_VALUE;
	int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return CUDA_ERROR_UNKNOWN;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

static uint64_t shared_id_of(int fd)
{
	char path[64], name[128];
	unsigned long long id = 0;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, name, sizeof(name) - 1);
	name[n > 0 ? n : 0] = 0;
	return sscanf(name, "/memfd:gpulimit-sim-vmm-%llu", &id) == 1 ? id : 0;
}

SIM_EXPORT CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type)
{
	SIM_ENTER(cuMemImportFromShareableHandle);
	uint64_t id = type == 1 ? shared_id_of((int)(intptr_t)os_handle) : 0;
	uint32_t gpu;
	uint64_t bytes;

	if (!handle || !id || !sim_share_join(id, &gpu, &bytes))
		return CUDA_ERROR_INVALID_VALUE;
	struct physical *p = calloc(1, sizeof(*p));
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*p = (struct physical){ .gpu = gpu, .size = bytes, .shared_id = id, .references = 1 };
	p->prop.type = p->prop.requestedHandleTypes = 1;
	p->prop.location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_DEVICE, sim_device_of_gpu(gpu) };
	p->fd = fcntl((int)(intptr_t)os_handle, F_DUPFD_CLOEXEC, 0);
	sim_handle_add(p, SIM_VMM);
	*handle = (uintptr_t)p;
	return CUDA_SUCCESS;
}
