/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tenant is told about memory: the quota as the total, the tenant's own use as what is taken.  Free never
 * wraps, and never passes what the card really has free.  The driver takes either address to be missing (seen on a
 * card: 0), so each output is written by itself.
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

static uint32_t narrow(uint64_t bytes)
{
	return bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	GL_ENTER(cuMemGetInfo_v2, (free, total));
	struct gl_gpu *gpu = gl_gpu_current();
	size_t card_free, card_total;
	if (!gpu || (!free && !total))
		return REAL(cuMemGetInfo_v2)(free, total);
	gl_pools_refresh(gpu);
	gl_overhead_refresh(gpu);
	CUresult result = REAL(cuMemGetInfo_v2)(&card_free, &card_total);
	if (result == CUDA_SUCCESS) {
		uint64_t f, t;
		view(gpu, card_free, &f, &t);
		if (free)
			*free = f;
		if (total)
			*total = t;
	}
	return result;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	GL_ENTER(cuMemGetInfo, (free, total));
	struct gl_gpu *gpu = gl_gpu_current();
	unsigned int card_free, card_total;
	if (!gpu || (!free && !total))
		return REAL(cuMemGetInfo)(free, total);
	gl_pools_refresh(gpu);
	gl_overhead_refresh(gpu);
	CUresult result = REAL(cuMemGetInfo)(&card_free, &card_total);
	if (result == CUDA_SUCCESS) {
		uint64_t f, t;
		view(gpu, card_free, &f, &t);
		if (free)
			*free = narrow(f);
		if (total)
			*total = narrow(t);
	}
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	GL_ENTER(cuDeviceTotalMem_v2, (bytes, dev));
	CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, dev);
	struct gl_gpu *gpu = result == CUDA_SUCCESS && bytes ? gl_gpu_of(dev) : NULL;
	if (gpu)
		*bytes = gl_limit_bytes(gpu);
	return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	GL_ENTER(cuDeviceTotalMem, (bytes, dev));
	CUresult result = REAL(cuDeviceTotalMem)(bytes, dev);
	struct gl_gpu *gpu = result == CUDA_SUCCESS && bytes ? gl_gpu_of(dev) : NULL;
	if (gpu)
		*bytes = narrow(gl_limit_bytes(gpu));
	return result;
}
