/* SPDX-License-Identifier: Apache-2.0
 *
 * The copy calls.  Those without a stream that involve the host wait for the card; between places on the
 * card they do not, as on a real one.
 */
#include <string.h>

#include "sim.h"

static struct sim_copy line(int to_type, CUdeviceptr to, int from_type, CUdeviceptr from, size_t bytes)
{
	struct sim_copy copy = { .bytes = bytes };
	sim_memcpy3d *p = &copy.params;

	p->dstMemoryType = to_type;
	p->srcMemoryType = from_type;
	p->dstDevice = to;
	p->dstHost = (void *)(uintptr_t)to;
	p->srcDevice = from;
	p->srcHost = (void *)(uintptr_t)from;
	p->WidthInBytes = bytes;
	p->Height = p->Depth = 1;
	return copy;
}

static CUresult submit(CUstream stream, const struct sim_copy *copy)
{
	SIM_TRY(sim_copy_check(copy));
	if (!copy->bytes)
		return CUDA_SUCCESS;
	SIM_TRY(sim_implicit(stream));
	if (stream->capture)
		return sim_capture_copy(stream, copy);
	return sim_copy_submit(stream, copy);
}

static CUresult run(CUstream handle, struct sim_copy copy)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	return submit(stream, &copy);
}

static CUresult run_and_wait(CUstream handle, struct sim_copy copy)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	SIM_TRY(sim_unsafe());
	SIM_TRY(submit(stream, &copy));
	sim_wait_item(stream->ctx, stream->last);
	return CUDA_SUCCESS;
}

static bool on_host(int type, CUdeviceptr ptr)
{
	struct sim_block *block = sim_block_with(ptr);

	return type == SIM_MEMORY_HOST ||
		(type == SIM_MEMORY_UNIFIED && (!block || block->kind == SIM_HOST || block->kind == SIM_REGISTERED));
}

static CUresult run_sync(CUstream handle, struct sim_copy copy)
{
	const sim_memcpy3d *p = &copy.params;

	if (on_host(p->srcMemoryType, p->srcDevice) || on_host(p->dstMemoryType, p->dstDevice))
		return run_and_wait(handle, copy);
	SIM_TRY(sim_unsafe());
	return run(handle, copy);
}

#define HOST(p) (CUdeviceptr)(uintptr_t)(p)
#define TO_DEVICE line(SIM_MEMORY_DEVICE, dst, SIM_MEMORY_HOST, HOST(src), bytes)
#define TO_HOST line(SIM_MEMORY_HOST, HOST(dst), SIM_MEMORY_DEVICE, src, bytes)
#define ON_DEVICE line(SIM_MEMORY_DEVICE, dst, SIM_MEMORY_DEVICE, src, bytes)
#define ANYWHERE line(SIM_MEMORY_UNIFIED, dst, SIM_MEMORY_UNIFIED, src, bytes)

/* A copy without a stream and its twin: `name`, `name`_ptds. */
#define SYNC(name, params, copy)                              \
	SIM_EXPORT CUresult name params                       \
	{                                                     \
		SIM_ENTER(name);                              \
		return run_sync(NULL, copy);                  \
	}
#define SYNC_PAIR(name, params, copy)                         \
	SYNC(name, params, copy)                              \
	SIM_EXPORT CUresult name##_ptds params                \
	{                                                     \
		SIM_ENTER(name##_ptds);                       \
		return run_sync(CU_STREAM_PER_THREAD, copy);  \
	}
/* A copy with a stream and its twin; the parameter list ends in `CUstream stream`. */
#define ASYNC(name, params, copy)                             \
	SIM_EXPORT CUresult name params                       \
	{                                                     \
		SIM_ENTER(name);                              \
		return run(stream, copy);                     \
	}
#define ASYNC_PAIR(name, params, copy)                        \
	ASYNC(name, params, copy)                             \
	SIM_EXPORT CUresult name##_ptsz params                \
	{                                                     \
		SIM_ENTER(name##_ptsz);                       \
		return run(SIM_PTSZ(stream), copy);           \
	}

SYNC(cuMemcpyHtoD, (CUdeviceptr_v1 dst, const void *src, unsigned int bytes), TO_DEVICE)
SYNC(cuMemcpyDtoH, (void *dst, CUdeviceptr_v1 src, unsigned int bytes), TO_HOST)
SYNC(cuMemcpyDtoD, (CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int bytes), ON_DEVICE)
SYNC_PAIR(cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t bytes), TO_DEVICE)
SYNC_PAIR(cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t bytes), TO_HOST)
SYNC_PAIR(cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), ON_DEVICE)
SYNC_PAIR(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), ANYWHERE)
ASYNC(cuMemcpyHtoDAsync, (CUdeviceptr_v1 dst, const void *src, unsigned int bytes, CUstream stream), TO_DEVICE)
ASYNC(cuMemcpyDtoHAsync, (void *dst, CUdeviceptr_v1 src, unsigned int bytes, CUstream stream), TO_HOST)
ASYNC(cuMemcpyDtoDAsync, (CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int bytes, CUstream stream), ON_DEVICE)
ASYNC_PAIR(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream), TO_DEVICE)
ASYNC_PAIR(cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream), TO_HOST)
ASYNC_PAIR(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), ON_DEVICE)
ASYNC_PAIR(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), ANYWHERE)

#define PEER (CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes)
#define PEER_ASYNC (CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes, CUstream stream)
#define PEER_COPY ((void)dst_ctx, (void)src_ctx, ON_DEVICE)
SYNC_PAIR(cuMemcpyPeer, PEER, PEER_COPY)
ASYNC_PAIR(cuMemcpyPeerAsync, PEER_ASYNC, PEER_COPY)

static struct sim_copy flat(const sim_memcpy2d *p)
{
	struct sim_copy copy = { .bytes = (uint64_t)p->WidthInBytes * p->Height };

	copy.params = (sim_memcpy3d){
		.srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost,
		.srcDevice = p->srcDevice, .srcArray = p->srcArray, .srcPitch = p->srcPitch,
		.dstXInBytes = p->dstXInBytes, .dstY = p->dstY, .dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost,
		.dstDevice = p->dstDevice, .dstArray = p->dstArray, .dstPitch = p->dstPitch,
		.WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = 1,
	};
	return copy;
}

static struct sim_copy solid(const sim_memcpy3d *p)
{
	return (struct sim_copy){ .params = *p, .bytes = (uint64_t)p->WidthInBytes * p->Height * p->Depth };
}

/* The calls that take a description refuse a missing one; `p` is the description. */
#define DESCRIBED(copy) (p ? copy : (struct sim_copy){ .bytes = UINT64_MAX })
SYNC_PAIR(cuMemcpy2D_v2, (const sim_memcpy2d *p), DESCRIBED(flat(p)))
SYNC_PAIR(cuMemcpy2DUnaligned_v2, (const sim_memcpy2d *p), DESCRIBED(flat(p)))
SYNC_PAIR(cuMemcpy3D_v2, (const sim_memcpy3d *p), DESCRIBED(solid(p)))
SYNC_PAIR(cuMemcpy3DPeer, (const sim_memcpy3d *p), DESCRIBED(solid(p)))
ASYNC_PAIR(cuMemcpy2DAsync_v2, (const sim_memcpy2d *p, CUstream stream), DESCRIBED(flat(p)))
ASYNC_PAIR(cuMemcpy3DAsync_v2, (const sim_memcpy3d *p, CUstream stream), DESCRIBED(solid(p)))
ASYNC_PAIR(cuMemcpy3DPeerAsync, (const sim_memcpy3d *p, CUstream stream), DESCRIBED(solid(p)))

/* Rows of an array, by offset in bytes. */
static struct sim_copy array_line(CUarray to, size_t to_offset, CUdeviceptr to_ptr, int to_type, CUarray from, size_t from_offset,
	CUdeviceptr from_ptr, int from_type, size_t bytes)
{
	struct sim_copy copy = line(to ? SIM_MEMORY_ARRAY : to_type, to_ptr, from ? SIM_MEMORY_ARRAY : from_type, from_ptr, bytes);

	copy.params.dstArray = to;
	copy.params.srcArray = from;
	copy.params.dstXInBytes = to_offset;
	copy.params.srcXInBytes = from_offset;
	return copy;
}

#define DEV SIM_MEMORY_DEVICE
#define HST SIM_MEMORY_HOST
SYNC_PAIR(cuMemcpyDtoA_v2, (CUarray dst, size_t at, CUdeviceptr src, size_t bytes),
	array_line(dst, at, 0, DEV, NULL, 0, src, DEV, bytes))
SYNC_PAIR(cuMemcpyAtoD_v2, (CUdeviceptr dst, CUarray src, size_t at, size_t bytes),
	array_line(NULL, 0, dst, DEV, src, at, 0, DEV, bytes))
SYNC_PAIR(cuMemcpyHtoA_v2, (CUarray dst, size_t at, const void *src, size_t bytes),
	array_line(dst, at, 0, DEV, NULL, 0, HOST(src), HST, bytes))
SYNC_PAIR(cuMemcpyAtoH_v2, (void *dst, CUarray src, size_t at, size_t bytes),
	array_line(NULL, 0, HOST(dst), HST, src, at, 0, DEV, bytes))
SYNC_PAIR(cuMemcpyAtoA_v2, (CUarray dst, size_t to, CUarray src, size_t from, size_t bytes),
	array_line(dst, to, 0, DEV, src, from, 0, DEV, bytes))
ASYNC_PAIR(cuMemcpyHtoAAsync_v2, (CUarray dst, size_t at, const void *src, size_t bytes, CUstream stream),
	array_line(dst, at, 0, DEV, NULL, 0, HOST(src), HST, bytes))
ASYNC_PAIR(cuMemcpyAtoHAsync_v2, (void *dst, CUarray src, size_t at, size_t bytes, CUstream stream),
	array_line(NULL, 0, HOST(dst), HST, src, at, 0, DEV, bytes))

/* Copies by the list; attributes and how they map to copies make no difference here. */
static CUresult batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, size_t *failed, CUstream stream)
{
	if (!dsts || !srcs || !sizes || !count || !stream)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		CUresult result = run(stream, line(SIM_MEMORY_UNIFIED, dsts[i], SIM_MEMORY_UNIFIED, srcs[i], sizes[i]));
		if (!result)
			continue;
		if (failed)
			*failed = i;
		return result;
	}
	return CUDA_SUCCESS;
}

#define BATCH_V1                                                                                           \
	(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *indexes,  \
		size_t nattrs, size_t *failed, CUstream stream)
#define BATCH_V2                                                                                           \
	(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *indexes,  \
		size_t nattrs, CUstream stream)
#define BATCH(name, params, failed)                                          \
	SIM_EXPORT CUresult name params                                      \
	{                                                                    \
		SIM_ENTER(name);                                             \
		(void)attrs, (void)indexes, (void)nattrs;                    \
		return batch(dsts, srcs, sizes, count, failed, stream);      \
	}
BATCH(cuMemcpyBatchAsync, BATCH_V1, failed)
BATCH(cuMemcpyBatchAsync_ptsz, BATCH_V1, failed)
BATCH(cuMemcpyBatchAsync_v2, BATCH_V2, NULL)
BATCH(cuMemcpyBatchAsync_v2_ptsz, BATCH_V2, NULL)
