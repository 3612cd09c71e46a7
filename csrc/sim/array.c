/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays and mipmapped arrays.  Size of an array: rows of width x channels x bytes per channel, rounded up
 * to 64 bytes, times rows, times slices or layers; of a mipmapped array: the sum over its levels, each
 * side halved and at least one.  That much is charged, in granules like plain memory.  Sparse and
 * deferred arrays take nothing.
 */
#include <stdlib.h>

#include "array.h"

struct CUmipmappedArray_st {
	CUcontext ctx;
	uint64_t bytes;
	unsigned int levels;
	CUarray level[32];
};

static unsigned int channel_bytes(int format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8: return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF: return 2;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT: return 4;
	default: return format >= 0xc0 && format <= 0xc5 ? 1 : format >= 0xc6 && format <= 0xcb ? 2 : 0;
	}
}

static CUresult measure(const CUDA_ARRAY3D_DESCRIPTOR *d, size_t *pitch, size_t *rows, uint64_t *bytes)
{
	size_t height = d->Height ? d->Height : 1, depth = d->Depth ? d->Depth : 1;
	unsigned int element = channel_bytes(d->Format) * d->NumChannels;

	if (!d->Width || !element || (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = (d->Width * element + 63) / 64 * 64;
	*rows = height;
	if (__builtin_mul_overflow(*pitch, height, bytes) || __builtin_mul_overflow(*bytes, depth, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

static bool takes_memory(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	return !(d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

/* An array with host memory behind it, not yet charged. */
static CUresult make(CUcontext ctx, const CUDA_ARRAY3D_DESCRIPTOR *d, CUarray *out)
{
	CUarray array = calloc(1, sizeof(*array));

	if (!array)
		return CUDA_ERROR_OUT_OF_MEMORY;
	array->ctx = ctx;
	array->desc = *d;
	CUresult result = measure(d, &array->pitch, &array->height, &array->bytes);
	array->mapped_bytes = sim_page_up(array->bytes);
	if (!result && !(array->addr = sim_backing(array->mapped_bytes, false)))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	struct sim_block block = {
		.addr = array->addr, .bytes = array->bytes, .kind = SIM_OPENED, .device = ctx->device, .fd = -1, .owner = array,
	};
	if (!result && (!sim_block_add(&block) || !sim_handle_add(array, SIM_ARRAY)))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result)
		free(array);
	else
		*out = array;
	return result;
}

static void unmake(CUarray array)
{
	struct sim_block *block = sim_block_at(array->addr);

	if (block)
		sim_block_drop(block);
	sim_unback(array->addr, array->mapped_bytes);
	sim_handle_drop(array);
	free(array);
}

void sim_array_drop(void *object)
{
	CUarray array = object;

	if (!array->mipmap && takes_memory(&array->desc))
		sim_give(array->ctx, array->bytes);
	unmake(array);
}

void sim_mipmap_drop(void *object)
{
	CUmipmappedArray mipmap = object;

	/* At the end of a context the levels have gone already, as arrays. */
	for (unsigned int i = 0; i < mipmap->levels; i++)
		if (sim_handle_is(mipmap->level[i], SIM_ARRAY))
			unmake(mipmap->level[i]);
	sim_give(mipmap->ctx, mipmap->bytes);
	sim_handle_drop(mipmap);
	free(mipmap);
}

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	SIM_CURRENT(ctx);
	SIM_TRY(sim_unsafe());
	size_t pitch, rows;
	uint64_t bytes;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(measure(d, &pitch, &rows, &bytes));
	if (takes_memory(d))
		SIM_TRY(sim_take(ctx, bytes));
	CUresult result = make(ctx, d, out);
	if (result && takes_memory(d))
		sim_give(ctx, bytes);
	return result;
}

SIM_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d)
{
	SIM_ENTER(cuArrayCreate_v2);
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(array, &(CUDA_ARRAY3D_DESCRIPTOR){ d->Width, d->Height, 0, d->Format, d->NumChannels, 0 });
}

SIM_EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
	SIM_ENTER(cuArrayCreate);
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(array, &(CUDA_ARRAY3D_DESCRIPTOR){ d->Width, d->Height, 0, d->Format, d->NumChannels, 0 });
}

SIM_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	SIM_ENTER(cuArray3DCreate_v2);
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(array, d);
}

SIM_EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
	SIM_ENTER(cuArray3DCreate);
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(array, &(CUDA_ARRAY3D_DESCRIPTOR){ d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags });
}

SIM_EXPORT CUresult cuArrayDestroy(CUarray array)
{
	SIM_ENTER(cuArrayDestroy);
	if (!sim_handle_is(array, SIM_ARRAY) || array->mipmap)
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_TRY(sim_unsafe());
	sim_wait_context(array->ctx);
	if (sim_handle_is(array, SIM_ARRAY))
		sim_array_drop(array);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray array)
{
	SIM_ENTER(cuArray3DGetDescriptor_v2);
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(array, SIM_ARRAY))
		return CUDA_ERROR_INVALID_HANDLE;
	*d = array->desc;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *d, CUarray array)
{
	SIM_ENTER(cuArrayGetDescriptor_v2);
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(array, SIM_ARRAY))
		return CUDA_ERROR_INVALID_HANDLE;
	*d = (CUDA_ARRAY_DESCRIPTOR){ array->desc.Width, array->desc.Height, array->desc.Format, array->desc.NumChannels };
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *d, CUarray array)
{
	SIM_ENTER(cuArrayGetDescriptor);
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(array, SIM_ARRAY))
		return CUDA_ERROR_INVALID_HANDLE;
	*d = (CUDA_ARRAY_DESCRIPTOR_v1){ (unsigned)array->desc.Width, (unsigned)array->desc.Height, array->desc.Format,
		array->desc.NumChannels };
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuArrayGetMemoryRequirements(sim_array_requirements *out, CUarray array, CUdevice device)
{
	SIM_ENTER(cuArrayGetMemoryRequirements);
	if (!out || !sim_device_ok(device))
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(array, SIM_ARRAY))
		return CUDA_ERROR_INVALID_HANDLE;
	*out = (sim_array_requirements){ .size = array->bytes, .alignment = 512 };
	return CUDA_SUCCESS;
}

static CUDA_ARRAY3D_DESCRIPTOR level_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int level)
{
	CUDA_ARRAY3D_DESCRIPTOR small = *d;

	small.Width = d->Width >> level ? d->Width >> level : 1;
	small.Height = d->Height ? (d->Height >> level ? d->Height >> level : 1) : 0;
	if (!(d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
		small.Depth = d->Depth ? (d->Depth >> level ? d->Depth >> level : 1) : 0;
	return small;
}

static CUresult mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels, uint64_t *sum)
{
	size_t pitch, rows;
	uint64_t bytes;

	*sum = 0;
	for (unsigned int i = 0; i < levels; i++) {
		CUDA_ARRAY3D_DESCRIPTOR level = level_of(d, i);
		SIM_TRY(measure(&level, &pitch, &rows, &bytes));
		*sum += bytes;
	}
	return CUDA_SUCCESS;
}

static unsigned int most_levels(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	size_t side = d->Width > d->Height ? d->Width : d->Height;
	unsigned int n = 0;

	if (!(d->Flags & CUDA_ARRAY3D_LAYERED) && d->Depth > side)
		side = d->Depth;
	for (; side && n < 32; side >>= 1)
		n++;
	return n;
}

SIM_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	SIM_ENTER(cuMipmappedArrayCreate);
	SIM_CURRENT(ctx);
	SIM_TRY(sim_unsafe());
	uint64_t bytes;

	if (!out || !d || !levels)
		return CUDA_ERROR_INVALID_VALUE;
	if (levels > most_levels(d))
		levels = most_levels(d);
	SIM_TRY(mipmap_bytes(d, levels, &bytes));
	if (!takes_memory(d))
		bytes = 0;
	SIM_TRY(sim_take(ctx, bytes));
	CUmipmappedArray mipmap = calloc(1, sizeof(*mipmap));
	if (!mipmap || !sim_handle_add(mipmap, SIM_MIPMAP)) {
		free(mipmap);
		sim_give(ctx, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mipmap->ctx = ctx;
	mipmap->bytes = bytes;
	for (; mipmap->levels < levels; mipmap->levels++) {
		CUDA_ARRAY3D_DESCRIPTOR level = level_of(d, mipmap->levels);
		CUresult result = make(ctx, &level, &mipmap->level[mipmap->levels]);
		if (result) {
			sim_mipmap_drop(mipmap);
			return result;
		}
		mipmap->level[mipmap->levels]->mipmap = mipmap;
	}
	*out = mipmap;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray mipmap, unsigned int level)
{
	SIM_ENTER(cuMipmappedArrayGetLevel);
	if (!sim_handle_is(mipmap, SIM_MIPMAP))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || level >= mipmap->levels)
		return CUDA_ERROR_INVALID_VALUE;
	*out = mipmap->level[level];
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
	SIM_ENTER(cuMipmappedArrayDestroy);
	if (!sim_handle_is(mipmap, SIM_MIPMAP))
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_TRY(sim_unsafe());
	sim_wait_context(mipmap->ctx);
	if (sim_handle_is(mipmap, SIM_MIPMAP))
		sim_mipmap_drop(mipmap);
	return CUDA_SUCCESS;
}
