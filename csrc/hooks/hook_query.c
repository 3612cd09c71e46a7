/* SPDX-License-Identifier: Apache-2.0
 *
 * Queries of memory: a tenant sees the quota as the total, and its own use as used memory.  Free memory never wraps,
 * and never exceeds the free memory of the card.  The driver accepts that either address is NULL (seen on a card), so
 * each output is written separately.
 */
#include "shim.h"

static void view(const struct gl_gpu *gpu, uint64_t card_free, uint64_t *free, uint64_t *total)
{
	uint64_t limit = gl_limit_bytes(gpu), used = gl_used_bytes(gpu);
	*total = limit;
	*free = used < limit ? limit - used : 0;
	if (*free > card_free)
		*free = card_free;
}

static uint64_t at_most(uint64_t bytes, uint64_t max_bytes)
{
	return bytes < max_bytes ? bytes : max_bytes;
}

#define MEM_GET_INFO_HOOK(name, size)                                         \
	CUresult name(size *free, size *total)                                \
	{                                                                     \
		GL_ENTER(name, (free, total));                                \
		struct gl_gpu *gpu = gl_gpu_current();                        \
		size card_free, card_total;                                   \
		if (!gpu || (!free && !total))                                \
			return REAL(name)(free, total);                       \
		gl_pools_refresh(gpu);                                        \
		gl_overhead_refresh(gpu);                                     \
		CUresult result = REAL(name)(&card_free, &card_total);        \
		if (result == CUDA_SUCCESS) {                                 \
			uint64_t f, t;                                        \
			view(gpu, card_free, &f, &t);                         \
			if (free)                                             \
				*free = (size)at_most(f, (size)-1);           \
			if (total)                                            \
				*total = (size)at_most(t, (size)-1);          \
		}                                                             \
		return result;                                                \
	}

/* The old calls have 32-bit results. */
MEM_GET_INFO_HOOK(cuMemGetInfo_v2, size_t)
MEM_GET_INFO_HOOK(cuMemGetInfo, unsigned int)

#define TOTAL_MEM_HOOK(name, size)                                                                     \
	CUresult name(size *bytes, CUdevice dev)                                                       \
	{                                                                                              \
		GL_ENTER(name, (bytes, dev));                                                          \
		CUresult result = REAL(name)(bytes, dev);                                              \
		struct gl_gpu *gpu = result == CUDA_SUCCESS && bytes ? gl_gpu_of(dev) : NULL;          \
		if (gpu)                                                                               \
			*bytes = (size)at_most(gl_limit_bytes(gpu), (size)-1);                         \
		return result;                                                                         \
	}

TOTAL_MEM_HOOK(cuDeviceTotalMem_v2, size_t)
TOTAL_MEM_HOOK(cuDeviceTotalMem, unsigned int)
