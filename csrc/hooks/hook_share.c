/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory passed to another process by an opaque handle: plain memory, and pointers of pools.  (By a descriptor:
 * hook_vmm.c.)  Memory of another process that is not the tenant's is charged to the process that opens it.
 */
#include "shim.h"

static uint64_t size_at(CUdeviceptr at, CUdeviceptr *base)
{
	size_t bytes = 0;
	*base = at;
	return REAL(cuMemGetAddressRange_v2)(base, &bytes, at) == CUDA_SUCCESS ? bytes : 0;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *name, CUdeviceptr dptr)
{
	GL_ENTER(cuIpcGetMemHandle, (name, dptr));
	CUresult result = REAL(cuIpcGetMemHandle)(name, dptr);
	CUdeviceptr base;
	if (result == CUDA_SUCCESS && name) { /* the handle is of the whole allocation */
		uint64_t bytes = size_at(dptr, &base);
		gl_shared_export(GL_SPACE_POINTER, base, name, bytes);
	}
	return result;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr)
{
	GL_ENTER(cuMemPoolExportPointer, (data, ptr));
	CUresult result = REAL(cuMemPoolExportPointer)(data, ptr);
	CUdeviceptr base;
	if (result == CUDA_SUCCESS && data) {
		uint64_t bytes = size_at(ptr, &base);
		gl_shared_export(GL_SPACE_POINTER, ptr, data, bytes);
	}
	return result;
}

/* Records the opened memory at the address.  False: the quota refuses it, or there is no room. */
static bool opened(enum gl_space space, CUdeviceptr at, uint64_t name)
{
	struct gl_block block = {.key = at, .space = space, .kind = GL_MEM_PLAIN, .count = 1}, old = {.space = 0};
	struct gl_gpu *gpu = gl_gpu_current();
	CUdeviceptr base;
	if (!gpu)
		return true;
	block.ordinal = (uint32_t)gpu->ordinal;
	(void)REAL(cuCtxGetCurrent)(&block.context);
	if (!gl_shared_join(name, &block) && !gl_imported_begin(gpu, &block, name, size_at(at, &base)))
		return false;
	if (gl_block_put(&block, &old) != 0) {
		gl_uncharge_block(&block);
		return false;
	}
	if (old.space)
		gl_uncharge_block(&old);
	return true;
}

/* Opening a handle again returns the same address, which must be closed as often as it was opened. */
#define OPENING(name_)                                                                                                 \
	CUresult name_(CUdeviceptr *dptr, CUipcMemHandle name, unsigned int flags)                                     \
	{                                                                                                              \
		GL_ENTER(name_, (dptr, name, flags));                                                                  \
		CUdeviceptr got;                                                                                       \
		if (!dptr)                                                                                             \
			return REAL(name_)(dptr, name, flags);                                                         \
		CUresult result = REAL(name_)(&got, name, flags);                                                      \
		if (result != CUDA_SUCCESS)                                                                            \
			return result;                                                                                 \
		if (!gl_block_add_reference(GL_SPACE_OPENED, got) &&                                                   \
		    !opened(GL_SPACE_OPENED, got, gl_shared_name(&name))) {                                            \
			REAL(cuIpcCloseMemHandle)(got);                                                                \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		}                                                                                                      \
		*dptr = got;                                                                                           \
		return CUDA_SUCCESS;                                                                                   \
	}

OPENING(cuIpcOpenMemHandle)
OPENING(cuIpcOpenMemHandle_v2)

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	GL_ENTER(cuIpcCloseMemHandle, (dptr));
	struct gl_block block = {.space = 0};
	/* Removed before the driver is called, as in cuMemFree. */
	bool known = gl_block_drop_reference(GL_SPACE_OPENED, dptr, &block);
	CUresult result = REAL(cuIpcCloseMemHandle)(dptr);
	if (!known)
		return result;
	if (result == CUDA_SUCCESS && block.count == 1)
		gl_uncharge_block(&block);
	else if (result != CUDA_SUCCESS && !gl_block_add_reference(GL_SPACE_OPENED, dptr))
		(void)gl_block_put(&block, NULL);
	return result;
}

/* Such a pointer is freed like memory of this process's own. */
CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	GL_ENTER(cuMemPoolImportPointer, (ptr, pool, data));
	CUdeviceptr got;
	if (!ptr || !data)
		return REAL(cuMemPoolImportPointer)(ptr, pool, data);
	CUresult result = REAL(cuMemPoolImportPointer)(&got, pool, data);
	if (result != CUDA_SUCCESS)
		return result;
	if (!opened(GL_SPACE_POINTER, got, gl_shared_name(data))) {
		REAL(cuMemFree_v2)(got);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ptr = got;
	return CUDA_SUCCESS;
}
