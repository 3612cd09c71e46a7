/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream-ordered allocation and pools.  On a capturing stream an allocation becomes a node of the graph and is charged
 * as one.  A pool of another process is charged there, not here; its pointers: hook_share.c.
 */
#include "shim.h"

struct request {
	CUdeviceptr *out;
	size_t bytes;
	CUmemoryPool pool; /* NULL: the current one of the stream's device */
	CUstream stream;
	bool per_thread;
};

static CUresult ask_driver(const struct request *request, CUdeviceptr *out)
{
	if (request->pool)
		return request->per_thread
			       ? REAL(cuMemAllocFromPoolAsync_ptsz)(out, request->bytes, request->pool, request->stream)
			       : REAL(cuMemAllocFromPoolAsync)(out, request->bytes, request->pool, request->stream);
	return request->per_thread ? REAL(cuMemAllocAsync_ptsz)(out, request->bytes, request->stream)
				   : REAL(cuMemAllocAsync)(out, request->bytes, request->stream);
}

static CUresult idle(const struct request *request)
{
	return request->per_thread ? REAL(cuStreamQuery_ptsz)(request->stream) : REAL(cuStreamQuery)(request->stream);
}

/* The driver releases freed memory only when it checks the stream; a trim alone is not enough (measured on a card).  So
 * this waits, at most 0.1 s, until the stream is idle, when synchronising takes no time.  A busier stream keeps the growth
 * of its pool, charged, until the program synchronises it. */
static void free_again(struct gl_gpu *gpu, const struct request *request, CUdeviceptr pointer)
{
	uint64_t deadline = gl_now_ns() + 100000000u;
	int kept = errno;
	struct timespec pause = {0, 200000};
	CUstreamCaptureMode mode = gl_capture_relax();
	CUresult result = request->per_thread ? REAL(cuMemFreeAsync_ptsz)(pointer, request->stream)
					      : REAL(cuMemFreeAsync)(pointer, request->stream);
	if (result == CUDA_SUCCESS)
		while ((result = idle(request)) == CUDA_ERROR_NOT_READY && gl_now_ns() < deadline)
			nanosleep(&pause, NULL);
	if (result == CUDA_SUCCESS && request->per_thread)
		REAL(cuStreamSynchronize_ptsz)(request->stream);
	else if (result == CUDA_SUCCESS)
		REAL(cuStreamSynchronize)(request->stream);
	gl_capture_restore(mode);
	errno = kept;
	(void)gl_pools_trim(gpu);
}

/* The device of the stream, which may differ from the current one. */
static struct gl_gpu *stream_gpu(CUstream stream)
{
	struct gl_gpu *gpu = gl_gpu_current();
	CUcontext context, popped;
	if ((gpu && gl_self.gpu_count == 1) || (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD ||
	    REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS ||
	    REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return gpu;
	gpu = gl_gpu_current();
	REAL(cuCtxPopCurrent_v2)(&popped);
	return gpu;
}

static CUmemoryPool current_pool(const struct gl_gpu *gpu)
{
	CUmemoryPool pool = NULL;
	CUstreamCaptureMode mode = gl_capture_relax();
	if (REAL(cuDeviceGetMemPool)(&pool, gpu->ordinal) != CUDA_SUCCESS)
		pool = NULL;
	gl_capture_restore(mode);
	return pool;
}

/* Call with pool_lock held. */
static CUresult allocate_from(struct gl_gpu *gpu, CUmemoryPool pool, const struct request *request)
{
	CUdeviceptr got;
	if (!gl_pool_reserve(gpu, pool, request->bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = ask_driver(request, &got);
	if (result != CUDA_SUCCESS) {
		(void)gl_pool_settle(gpu, pool);
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			gl_count_card_refusal(gpu);
		return result;
	}
	struct gl_block old = {.space = 0}, block = {.key = got, .space = GL_SPACE_POINTER, .kind = GL_MEM_POOL,
						     .ordinal = (uint32_t)gpu->ordinal, .other = (uintptr_t)pool};
	bool fits = gl_pool_settle(gpu, pool);
	if (!fits || gl_block_put(&block, &old) != 0) {
		free_again(gpu, request, got);
		if (!fits)
			gl_count_refusal(gpu, request->bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (old.space)
		gl_uncharge_block(&old);
	*request->out = got;
	return CUDA_SUCCESS;
}

/* Call with pool_lock held. */
static CUresult allocate_in_graph(struct gl_gpu *gpu, CUgraph graph, const struct request *request)
{
	CUdeviceptr got;
	uint64_t need = gl_graph_memory_need(gpu, graph, request->bytes);
	if (gl_graph_memory_prepare(gpu, graph, true) != 0 || gl_reserve(gpu, GL_MEM_GRAPH, need) != 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	gl_in_flight_begin(gpu);
	CUresult result = ask_driver(request, &got);
	if (result != CUDA_SUCCESS) {
		gl_uncharge(gpu, GL_MEM_GRAPH, need);
		gl_in_flight_end(gpu);
		return result;
	}
	gl_graph_memory_add(gpu, graph, got, request->bytes, need);
	gl_in_flight_end(gpu);
	*request->out = got;
	return CUDA_SUCCESS;
}

static CUresult allocate_once(struct gl_gpu *gpu, CUmemoryPool pool, const struct request *request)
{
	gl_lock(&gpu->pool_lock);
	CUresult result = allocate_from(gpu, pool, request);
	gl_unlock(&gpu->pool_lock);
	return result;
}

static CUresult allocate(const struct request *request)
{
	CUgraph graph = gl_capturing_graph(request->stream, request->per_thread);
	struct gl_gpu *gpu = request->pool ? gl_pool_gpu(request->pool) : stream_gpu(request->stream);
	CUmemoryPool pool = request->pool;
	if (!request->out || !request->bytes || !gpu)
		return ask_driver(request, request->out);
	if (!pool && !graph) {
		pool = current_pool(gpu);
		gpu = pool ? gl_pool_gpu(pool) : NULL;
		if (!gpu)
			return ask_driver(request, request->out);
	}
	if (!graph)
		return GL_RETRY_ON_OOM(gpu, request->bytes, GL_OOM_POLL_NS, allocate_once(gpu, pool, request));
	gl_lock(&gpu->pool_lock);
	CUresult result = allocate_in_graph(gpu, graph, request);
	gl_unlock(&gpu->pool_lock);
	return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	GL_ENTER(cuMemAllocAsync, (dptr, bytes, stream));
	return allocate(&(struct request){dptr, bytes, NULL, stream, false});
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	GL_ENTER(cuMemAllocAsync_ptsz, (dptr, bytes, stream));
	return allocate(&(struct request){dptr, bytes, NULL, stream, true});
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	GL_ENTER(cuMemAllocFromPoolAsync, (dptr, bytes, pool, stream));
	if (!pool)
		return REAL(cuMemAllocFromPoolAsync)(dptr, bytes, pool, stream);
	return allocate(&(struct request){dptr, bytes, pool, stream, false});
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	GL_ENTER(cuMemAllocFromPoolAsync_ptsz, (dptr, bytes, pool, stream));
	if (!pool)
		return REAL(cuMemAllocFromPoolAsync_ptsz)(dptr, bytes, pool, stream);
	return allocate(&(struct request){dptr, bytes, pool, stream, true});
}

/* Pools in host memory are not charged; managed ones without a place to the current device, as cuMemAllocManaged. */
static struct gl_gpu *gpu_of_location(const CUmemPoolProps *props)
{
	if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		return gl_gpu_of(props->location.id);
	bool nowhere = props->location.type == CU_MEM_LOCATION_TYPE_INVALID;
	return nowhere && props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ? gl_gpu_current() : NULL;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	GL_ENTER(cuMemPoolCreate, (pool, props));
	CUmemoryPool got;
	if (!pool || !props)
		return REAL(cuMemPoolCreate)(pool, props);
	if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && gl_device_barred(props->location.id))
		return GL_FAILED_RESULT;
	CUresult result = REAL(cuMemPoolCreate)(&got, props);
	if (result != CUDA_SUCCESS)
		return result;
	bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
	if (gl_pool_add(got, gpu_of_location(props), managed ? GL_MEM_MANAGED : GL_MEM_POOL) != 0) {
		REAL(cuMemPoolDestroy)(got);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pool = got;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	GL_ENTER(cuMemPoolDestroy, (pool));
	return pool ? gl_pool_destroy(pool) : REAL(cuMemPoolDestroy)(pool);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	GL_ENTER(cuMemPoolTrimTo, (pool, keep));
	CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
	struct gl_gpu *gpu = result == CUDA_SUCCESS && pool ? gl_pool_gpu(pool) : NULL;
	if (gpu)
		gl_pool_refresh(gpu, pool);
	return result;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
					    unsigned long long flags)
{
	GL_ENTER(cuMemPoolImportFromShareableHandle, (pool, handle, type, flags));
	CUresult result = REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
	if (result == CUDA_SUCCESS && pool)
		(void)gl_pool_add(*pool, NULL, GL_MEM_POOL);
	return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	GL_ENTER(cuDeviceGraphMemTrim, (device));
	CUresult result = REAL(cuDeviceGraphMemTrim)(device);
	struct gl_gpu *gpu = gl_gpu_of(device);
	if (result == CUDA_SUCCESS && gpu && gl_load_relaxed(&gpu->graph_memory))
		gl_graph_memory_trimmed(gpu);
	return result;
}
