/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory management.  Memory made by cuMemCreate lives until its last handle is released and its last mapping
 * undone, and is charged exactly as long.  Three kinds of blocks keep that: the memory, by an id of ours, counts its
 * references; a handle and a mapping each name the memory and are one reference.  The id is needed because a handle may
 * be released long before its mapping, the driver may reuse its value, and the program may request a new handle for the
 * memory.
 *
 * Imported memory is charged to one of the processes that hold it where it is the tenant's (sharing.c).  Where it is
 * not, the driver does not tell its size either, so it is charged here as far as it is mapped.
 *
 * Memory on the host is passed through and not charged; its mappings are written down with id 0, so that unmapping a
 * range can walk from one to the next.
 */
#include "shim.h"

#define GRANULE ((size_t)2 << 20)
#define FOREIGN 1 /* in `other` of memory: imported from outside the tenant; or its common name, which is another number */

/* Drops one reference to the memory; the last one uncharges it. */
static void memory_unreferenced(uint64_t id)
{
	struct gl_block memory;
	if (!id || !gl_block_drop_reference(GL_SPACE_VMM_MEMORY, id, &memory) || memory.count > 1)
		return;
	gl_uncharge_block(&memory);
	/* an array may still hold the memory, which counts as overhead then */
	if (GL_UNLIKELY(gl_load_relaxed(&gl_self.sparse_arrays)))
		gl_overhead_mark(gl_gpu_of((CUdevice)memory.ordinal));
}

static void on_every_gpu(void (*change)(struct gl_gpu *gpu))
{
	for (int i = 0; i < gl_self.gpu_count; i++)
		change(&gl_self.gpu[i]);
}

static int handle_add(CUmemGenericAllocationHandle handle, uint64_t id)
{
	struct gl_block old = {.space = 0}, block = {.key = handle, .space = GL_SPACE_VMM_HANDLE, .kind = GL_MEM_VMM,
						     .count = 1, .other = id};
	int r = gl_block_put(&block, &old);
	if (r == 0 && old.space) /* the driver has reused the value: the old handle was released */
		memory_unreferenced(old.other);
	return r;
}

static bool create_keep(struct gl_charge *charge, CUmemGenericAllocationHandle handle)
{
	uint64_t id = gl_add_relaxed(&gl_self.next_id, 1) + 1;
	struct gl_block memory;
	if (!gl_charge_commit(charge, GL_SPACE_VMM_MEMORY, id))
		return false;
	(void)gl_block_add_reference(GL_SPACE_VMM_MEMORY, id);
	if (handle_add(handle, id) == 0)
		return true;
	if (gl_block_take(GL_SPACE_VMM_MEMORY, id, &memory))
		gl_uncharge_block(&memory);
	return false;
}

static struct gl_gpu *gpu_of(const CUmemAllocationProp *prop)
{
	return prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? gl_gpu_of(prop->location.id) : NULL;
}

/* The driver's answer to the same request in the smallest size, if it may be invalid.  CUDA_SUCCESS: it is valid. */
static CUresult doubt(size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUmemGenericAllocationHandle got;
	size_t odd = size % GRANULE;
	if (!flags && !odd && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && !(prop->requestedHandleTypes & ~1))
		return CUDA_SUCCESS;
	CUresult result = REAL(cuMemCreate)(&got, odd ? odd : GRANULE, prop, flags);
	if (result == CUDA_SUCCESS)
		REAL(cuMemRelease)(got);
	return result;
}

static CUresult once_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		     unsigned long long flags)
{
	struct gl_gpu *gpu = handle && size ? gpu_of(prop) : NULL;
	struct gl_charge charge;
	CUmemGenericAllocationHandle got;
	if (!gpu)
		return prop && gl_device_barred(prop->location.id) && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE
			       ? GL_FAILED_RESULT
			       : REAL(cuMemCreate)(handle, size, prop, flags);
	if (!gl_charge_begin_on(&charge, gpu, GL_MEM_VMM, size))
		return gl_charge_refused(&charge, doubt(size, prop, flags));
	CUresult result = REAL(cuMemCreate)(&got, size, prop, flags);
	if (result != CUDA_SUCCESS)
		return gl_charge_cancel(&charge, result);
	if (!create_keep(&charge, got)) {
		REAL(cuMemRelease)(got);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*handle = got;
	return CUDA_SUCCESS;
}

GL_RETRY_ON_OOM_HOOK(cuMemCreate,
		     (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags),
		(handle, size, prop, flags), gpu_of(prop), size)

/* Removed before the driver is called, because its value may be reused at once; see cuMemFree. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	GL_ENTER(cuMemRelease, (handle));
	struct gl_block block;
	if (!gl_block_drop_reference(GL_SPACE_VMM_HANDLE, handle, &block))
		return REAL(cuMemRelease)(handle);
	on_every_gpu(gl_in_flight_begin);
	CUresult result = REAL(cuMemRelease)(handle);
	if (result == CUDA_SUCCESS && block.count == 1) {
		memory_unreferenced(block.other);
	} else if (result != CUDA_SUCCESS && !gl_block_add_reference(GL_SPACE_VMM_HANDLE, handle)) {
		block.count = 1;
		(void)gl_block_put(&block, NULL);
	}
	on_every_gpu(gl_in_flight_end);
	return result;
}

static bool grow_import(struct gl_block *memory, void *arg)
{
	struct gl_block *more = arg;
	memory->bytes += more->bytes;
	memory->imported |= more->imported;
	if (more->share && !memory->share) {
		memory->share = more->share;
		more->share = 0;
	}
	return false;
}

/* Joins the tenant's entry for the memory, or charges the bytes up to `end` that no entry covers. */
static bool import_more(struct gl_gpu *gpu, const struct gl_block *memory, struct gl_block *more, uint64_t end)
{
	bool first = !memory->share && !memory->bytes && memory->other != FOREIGN;
	if (first && !gl_shared_join(memory->other, more))
		return gl_imported_begin(gpu, more, memory->other, end);
	uint64_t covered = memory->bytes + gl_shared_bytes(first ? more->share : memory->share);
	if (end <= covered || gl_imported_begin(gpu, more, 0, end - covered))
		return true;
	gl_shared_leave(more->share);
	return false;
}

/* Memory from outside the tenant is now mapped up to `end`.  False: the quota refuses. */
static bool charge_import(uint64_t id, uint64_t end)
{
	struct gl_block memory, more;
	if (GL_LIKELY(!gl_block_get(GL_SPACE_VMM_MEMORY, id, &memory) || !memory.other ||
		      end <= memory.bytes + gl_shared_bytes(memory.share)))
		return true;
	struct gl_gpu *gpu = gl_gpu_of((CUdevice)memory.ordinal);
	more = (struct gl_block){.kind = GL_MEM_VMM};
	if (!gpu || !import_more(gpu, &memory, &more, end))
		return !gpu;
	(void)gl_block_update(GL_SPACE_VMM_MEMORY, id, grow_import, &more);
	gl_shared_leave(more.share); /* another thread has mapped it meanwhile */
	return true;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	GL_ENTER(cuMemMap, (ptr, size, offset, handle, flags));
	struct gl_block known = {.space = 0}, old = {.space = 0};
	struct gl_block mapping = {.key = ptr, .bytes = size, .space = GL_SPACE_VMM_MAPPING, .kind = GL_MEM_VMM};
	/* Referenced before the driver is called: another thread may release the handle right afterwards. */
	if (gl_block_get(GL_SPACE_VMM_HANDLE, handle, &known) &&
	    gl_block_add_reference(GL_SPACE_VMM_MEMORY, known.other))
		mapping.other = known.other;
	CUresult result = REAL(cuMemMap)(ptr, size, offset, handle, flags);
	bool fits = result != CUDA_SUCCESS || !mapping.other || charge_import(mapping.other, offset + size);
	if (result == CUDA_SUCCESS && ptr && (!fits || gl_block_put(&mapping, &old) != 0)) {
		REAL(cuMemUnmap)(ptr, size);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result != CUDA_SUCCESS)
		memory_unreferenced(mapping.other);
	else if (old.space)
		memory_unreferenced(old.other);
	return result;
}

/* The program chooses these addresses and cannot map them again before the call returns, so here the driver may
 * go first.  It only unmaps whole mappings, one or several. */
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	GL_ENTER(cuMemUnmap, (ptr, size));
	struct gl_block mapping;
	on_every_gpu(gl_in_flight_begin);
	CUresult result = REAL(cuMemUnmap)(ptr, size);
	for (uint64_t at = ptr; result == CUDA_SUCCESS && at - ptr < size; at += mapping.bytes) {
		if (!gl_block_take(GL_SPACE_VMM_MAPPING, at, &mapping) || !mapping.bytes)
			break;
		memory_unreferenced(mapping.other);
	}
	on_every_gpu(gl_in_flight_end);
	return result;
}

struct search {
	uint64_t address, id;
};

static bool contains(struct gl_block *block, void *arg)
{
	struct search *search = arg;
	if (block->space == GL_SPACE_VMM_MAPPING && search->address - block->key < block->bytes)
		search->id = block->other;
	return false;
}

/* A handle for mapped memory: the existing one, or a new one if all were released. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	GL_ENTER(cuMemRetainAllocationHandle, (handle, addr));
	CUresult result = REAL(cuMemRetainAllocationHandle)(handle, addr);
	struct search search = {(uintptr_t)addr, 0};
	struct gl_block mapping;
	if (result != CUDA_SUCCESS || !handle || gl_block_add_reference(GL_SPACE_VMM_HANDLE, *handle))
		return result;
	if (gl_block_get(GL_SPACE_VMM_MAPPING, search.address, &mapping))
		search.id = mapping.other;
	else
		gl_block_each(contains, &search);
	if (search.id && gl_block_add_reference(GL_SPACE_VMM_MEMORY, search.id) &&
	    handle_add(*handle, search.id) != 0) {
		REAL(cuMemRelease)(*handle);
		memory_unreferenced(search.id);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}

static struct gl_gpu *gpu_of_import(CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop = {.type = 0};
	if (!gl_has(GL_ID_cuMemGetAllocationPropertiesFromHandle) ||
	    REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, handle) != CUDA_SUCCESS)
		return gl_gpu_current();
	return gpu_of(&prop);
}

/* Records imported memory.  False: there is no room for it. */
static bool import_keep(CUmemGenericAllocationHandle handle, uint64_t name, uint64_t common)
{
	uint64_t id = gl_add_relaxed(&gl_self.next_id, 1) + 1;
	struct gl_gpu *gpu = gpu_of_import(handle);
	struct gl_block memory = {.key = id, .space = GL_SPACE_VMM_MEMORY, .kind = GL_MEM_VMM, .count = 1};
	if (!gpu)
		return true; /* on the host */
	memory.ordinal = (uint32_t)gpu->ordinal;
	if (!gl_shared_join(name, &memory))
		memory.other = common ? common : FOREIGN;
	if (gl_block_put(&memory, NULL) != 0) {
		gl_shared_leave(memory.share);
		return false;
	}
	if (handle_add(handle, id) == 0)
		return true;
	memory_unreferenced(id);
	return false;
}

/* If the value is known, the program imports this process's own memory, and the import is one more reference to it. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
					CUmemAllocationHandleType type)
{
	GL_ENTER(cuMemImportFromShareableHandle, (handle, os_handle, type));
	CUresult result = REAL(cuMemImportFromShareableHandle)(handle, os_handle, type);
	if (result != CUDA_SUCCESS || !handle || gl_block_add_reference(GL_SPACE_VMM_HANDLE, *handle))
		return result;
	bool by_fd = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	int fd = (int)(intptr_t)os_handle;
	if (import_keep(*handle, by_fd ? gl_shared_name_of_fd(fd) : 0, by_fd ? gl_shared_common_name_of_fd(fd) : 0))
		return result;
	REAL(cuMemRelease)(*handle);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemExportToShareableHandle(void *os_handle, CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType type, unsigned long long flags)
{
	GL_ENTER(cuMemExportToShareableHandle, (os_handle, handle, type, flags));
	CUresult result = REAL(cuMemExportToShareableHandle)(os_handle, handle, type, flags);
	struct gl_block known;
	if (result == CUDA_SUCCESS && os_handle && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
	    gl_block_get(GL_SPACE_VMM_HANDLE, handle, &known))
		gl_shared_export_fd(GL_SPACE_VMM_MEMORY, known.other, *(int *)os_handle);
	return result;
}
