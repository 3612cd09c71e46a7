/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory of any kind, taken and given back at random; for programs that count on books.h.
 */
#ifndef GL_TEST_ANY_MEMORY_H
#define GL_TEST_ANY_MEMORY_H

#include <time.h>

#include "books.h"

enum any_kind { ANY_NONE, ANY_PLAIN, ANY_PITCHED, ANY_MANAGED, ANY_ARRAY, ANY_MIPMAP, ANY_ASYNC, ANY_POOL, ANY_VMM, ANY_KINDS };

struct any_piece {
	enum any_kind kind;
	uint64_t handle;
};

struct any_place {
	CUdevice dev;
	CUcontext context;
	CUstream stream;
	CUmemoryPool pool;
};

static uint64_t any_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	return *state ^= *state << 17;
}

static uint64_t any_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The first CUDA calls of a process.  CUDA_SUCCESS or what went wrong. */
static CUresult any_begin(struct any_place *place)
{
	CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUresult r = cuInit(0);
	r = r ? r : cuDeviceGet(&place->dev, 0);
	r = r ? r : cuDevicePrimaryCtxRetain(&place->context, place->dev);
	r = r ? r : cuCtxSetCurrent(place->context);
	r = r ? r : cuStreamCreate(&place->stream, CU_STREAM_NON_BLOCKING);
	return r ? r : cuMemPoolCreate(&place->pool, &props);
}

static CUresult any_take(const struct any_place *place, struct any_piece *piece, enum any_kind kind, size_t bytes)
{
	CUDA_ARRAY_DESCRIPTOR flat = {1024, bytes / 4096 + 1, CU_AD_FORMAT_FLOAT, 1};
	CUDA_ARRAY3D_DESCRIPTOR mip = {256, bytes / 2048 + 1, 0, CU_AD_FORMAT_FLOAT, 1, 0};
	CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, place->dev}};
	CUdeviceptr pointer = 0;
	CUarray array = NULL;
	CUmipmappedArray levels = NULL;
	CUmemGenericAllocationHandle handle = 0;
	size_t pitch;
	CUresult r = kind == ANY_PLAIN     ? cuMemAlloc_v2(&pointer, bytes)
		     : kind == ANY_PITCHED ? cuMemAllocPitch_v2(&pointer, &pitch, 100 + bytes % 900, bytes / 1000 + 1, 4)
		     : kind == ANY_MANAGED ? cuMemAllocManaged(&pointer, bytes, 1)
		     : kind == ANY_ASYNC   ? cuMemAllocAsync(&pointer, bytes, place->stream)
		     : kind == ANY_POOL    ? cuMemAllocFromPoolAsync(&pointer, bytes, place->pool, place->stream)
		     : kind == ANY_ARRAY   ? cuArrayCreate_v2(&array, &flat)
		     : kind == ANY_MIPMAP  ? cuMipmappedArrayCreate(&levels, &mip, 3)
					   : cuMemCreate(&handle, 2 << 20, &prop, 0);
	if (r == CUDA_SUCCESS)
		*piece = (struct any_piece){kind, pointer ? pointer : array ? (uint64_t)(uintptr_t)array
								: levels    ? (uint64_t)(uintptr_t)levels
									    : handle};
	return r;
}

static CUresult any_give(const struct any_place *place, struct any_piece *piece, uint64_t luck)
{
	CUresult r = piece->kind == ANY_ARRAY    ? cuArrayDestroy((CUarray)(uintptr_t)piece->handle)
		     : piece->kind == ANY_MIPMAP ? cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)piece->handle)
		     : piece->kind == ANY_VMM    ? cuMemRelease(piece->handle)
		     : piece->kind == ANY_ASYNC || piece->kind == ANY_POOL || luck % 4 == 0
			     ? cuMemFreeAsync(piece->handle, place->stream)
			     : cuMemFree_v2(piece->handle);
	piece->kind = ANY_NONE;
	return r;
}

/* One step at random: gives a piece back if that place holds one, else takes one.  Out of memory is not an error. */
static CUresult any_step(const struct any_place *place, struct any_piece *pieces, unsigned count, size_t most, uint64_t *state)
{
	struct any_piece *piece = &pieces[any_random(state) % count];
	if (piece->kind != ANY_NONE)
		return any_give(place, piece, any_random(state));
	enum any_kind kind = ANY_PLAIN + (enum any_kind)(any_random(state) % (ANY_KINDS - 1));
	CUresult r = any_take(place, piece, kind, any_random(state) % most + 1);
	return r == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : r;
}

/* Gives everything back, what pools keep as well. */
static CUresult any_end(const struct any_place *place, struct any_piece *pieces, unsigned count)
{
	CUmemoryPool pool;
	CUresult r = CUDA_SUCCESS;
	for (unsigned i = 0; i < count; i++)
		if (pieces[i].kind != ANY_NONE)
			r = r ? r : any_give(place, &pieces[i], 1);
	r = r ? r : cuStreamSynchronize(place->stream);
	r = r ? r : cuMemPoolDestroy(place->pool);
	r = r ? r : cuDeviceGetDefaultMemPool(&pool, place->dev);
	return r ? r : cuMemPoolTrimTo(pool, 0);
}

#endif
