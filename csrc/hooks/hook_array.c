/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays and mipmapped arrays.  Sparse ones and those mapped later have no memory of their own: theirs comes from
 * cuMemCreate and is charged there.
 */
#include "memory/array_size.h"
#include "shim.h"

static bool has_memory(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	if (!(desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)))
		return true;
	gl_store_relaxed(&gl_self.sparse_arrays, 1u);
	return false;
}

static CUDA_ARRAY3D_DESCRIPTOR widen(const CUDA_ARRAY_DESCRIPTOR *d)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){
		.Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
}

static CUDA_ARRAY3D_DESCRIPTOR widen_v1(const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){
		.Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
}

static CUDA_ARRAY3D_DESCRIPTOR as_it_is(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	return *d;
}

static CUDA_ARRAY3D_DESCRIPTOR widen_3d_v1(const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){.Width = d->Width, .Height = d->Height, .Depth = d->Depth,
					 .Format = d->Format, .NumChannels = d->NumChannels, .Flags = d->Flags};
}

/* The driver's answer to such a description in the smallest size, if its format or number of channels is not known
 * here.  CUDA_SUCCESS: the description is valid. */
static CUresult doubt(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	CUDA_ARRAY3D_DESCRIPTOR tiny = {.Width = 1, .Format = d->Format, .NumChannels = d->NumChannels};
	CUarray got;
	if ((d->Flags & CUDA_ARRAY3D_CUBEMAP) && (d->Width != d->Height || !d->Depth || d->Depth % 6))
		return CUDA_ERROR_INVALID_VALUE;
	if (gl_array_format_known(d))
		return CUDA_SUCCESS;
	CUresult result = REAL(cuArray3DCreate_v2)(&got, &tiny);
	if (result == CUDA_SUCCESS)
		REAL(cuArrayDestroy)(got);
	return result;
}

/* The four calls that make an array only differ in the description. */
#define CREATING(name, description, widened)                                                                           \
	static CUresult once_##name(CUarray *array, const description *desc)                                           \
	{                                                                                                              \
		struct gl_charge charge;                                                                               \
		CUarray got;                                                                                           \
		if (!array || !desc || !desc->Width)                                                                   \
			return REAL(name)(array, desc);                                                                \
		CUDA_ARRAY3D_DESCRIPTOR wide = widened(desc);                                                          \
		if (!has_memory(&wide))                                                                                \
			return REAL(name)(array, desc);                                                                \
		if (!gl_charge_begin(&charge, GL_MEM_ARRAY, gl_array_bytes(&wide)))                                    \
			return gl_charge_refused(&charge, doubt(&wide));                                               \
		CUresult result = REAL(name)(&got, desc);                                                              \
		if (result != CUDA_SUCCESS)                                                                            \
			return gl_charge_cancel(&charge, result);                                                      \
		if (!gl_charge_commit(&charge, GL_SPACE_ARRAY, (uintptr_t)got)) {                                      \
			REAL(cuArrayDestroy)(got);                                                                     \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		}                                                                                                      \
		*array = got;                                                                                          \
		return CUDA_SUCCESS;                                                                                   \
	}                                                                                                              \
	GL_RETRY_ON_OOM_HOOK(name, (CUarray *array, const description *desc), (array, desc), gl_gpu_current(), 0)

CREATING(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, widen)
CREATING(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, widen_v1)
CREATING(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, as_it_is)
CREATING(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, widen_3d_v1)

static CUresult once_cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	struct gl_charge charge;
	CUmipmappedArray got;
	if (!array || !desc || !desc->Width || !has_memory(desc))
		return REAL(cuMipmappedArrayCreate)(array, desc, levels);
	if (!gl_charge_begin(&charge, GL_MEM_ARRAY, gl_mipmap_bytes(desc, levels)))
		return gl_charge_refused(&charge, doubt(desc));
	CUresult result = REAL(cuMipmappedArrayCreate)(&got, desc, levels);
	if (result != CUDA_SUCCESS)
		return gl_charge_cancel(&charge, result);
	if (!gl_charge_commit(&charge, GL_SPACE_ARRAY, (uintptr_t)got)) {
		REAL(cuMipmappedArrayDestroy)(got);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*array = got;
	return CUDA_SUCCESS;
}

GL_RETRY_ON_OOM_HOOK(cuMipmappedArrayCreate,
		     (CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels),
		(array, desc, levels), gl_gpu_current(), 0)

/* Removed before the driver frees it, as in cuMemFree: the handle may be reused at once. */
static struct gl_block taken(void *array)
{
	struct gl_block block = {.space = 0};
	(void)gl_block_take(GL_SPACE_ARRAY, (uintptr_t)array, &block);
	gl_uncharge_begin(&block);
	return block;
}

static CUresult destroyed(CUresult result, const struct gl_block *block)
{
	gl_uncharge_end(block, result);
	return result;
}

CUresult cuArrayDestroy(CUarray array)
{
	GL_ENTER(cuArrayDestroy, (array));
	struct gl_block block = taken(array);
	return destroyed(REAL(cuArrayDestroy)(array), &block);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	GL_ENTER(cuMipmappedArrayDestroy, (array));
	struct gl_block block = taken(array);
	return destroyed(REAL(cuMipmappedArrayDestroy)(array), &block);
}
