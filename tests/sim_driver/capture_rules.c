/* SPDX-License-Identifier: Apache-2.0
 *
 * What stream capture forbids, as measured with driver 580.159: for each mode of capture, each mode of the
 * calling thread and each call, whether it is refused with 900 and the capture lost (901 at its end).
 */
#include <pthread.h>

#include "driver.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED };
static CUstream capturing, other;
static CUevent event;
static CUmemoryPool pool;

static CUresult pool_attribute(void)
{
	cuuint64_t value;
	return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
}

static CUresult pool_trim(void) { return cuMemPoolTrimTo(pool, 0); }
static CUresult event_query(void) { return cuEventQuery(event); }

static CUresult mem_alloc(void)
{
	CUdeviceptr p;
	CUresult result = cuMemAlloc_v2(&p, 1000);
	return result ? result : cuMemFree_v2(p);
}

static CUresult mem_info(void)
{
	size_t a, b;
	return cuMemGetInfo_v2(&a, &b);
}

static CUresult event_create(void)
{
	CUevent e;
	return cuEventCreate(&e, 0);
}

static CUresult stream_create(void)
{
	CUstream s;
	return cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
}

static CUresult record_elsewhere(void) { return cuEventRecord(event, other); }

static CUresult graph_attribute(void)
{
	cuuint64_t value;
	return cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value);
}

static CUresult is_capturing(void)
{
	CUstreamCaptureStatus status;
	return cuStreamIsCapturing(capturing, &status);
}

static CUresult current(void)
{
	CUcontext ctx;
	return cuCtxGetCurrent(&ctx);
}

static const struct call {
	const char *name;
	CUresult (*make)(void);
	bool unsafe;
} calls[] = {
	{ "cuMemPoolGetAttribute", pool_attribute, true }, { "cuMemPoolTrimTo", pool_trim, true },
	{ "cuEventQuery", event_query, true }, { "cuMemAlloc", mem_alloc, true }, { "cuMemGetInfo", mem_info, false },
	{ "cuEventCreate", event_create, false }, { "cuStreamCreate", stream_create, false },
	{ "cuEventRecord", record_elsewhere, false }, { "cuDeviceGetGraphMemAttribute", graph_attribute, false },
	{ "cuStreamIsCapturing", is_capturing, false }, { "cuCtxGetCurrent", current, false },
};

struct attempt {
	const struct call *call;
	CUcontext ctx;
	int thread_mode;
	CUresult result;
};

static void *attempt(void *object)
{
	struct attempt *a = object;
	int mode = a->thread_mode;
	OK(cuCtxSetCurrent(a->ctx));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	a->result = a->call->make();
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	return NULL;
}

static void check(const struct call *call, int mode, int thread_mode, bool same_thread, CUcontext ctx)
{
	struct attempt a = { call, ctx, thread_mode, 0 };
	CUgraph graph = NULL;
	bool refused = call->unsafe && mode != RELAXED && thread_mode != RELAXED &&
		(same_thread || (mode == GLOBAL && thread_mode == GLOBAL));
	OK(cuStreamBeginCapture_v2(capturing, mode));
	if (same_thread) {
		attempt(&a);
	} else {
		pthread_t thread;
		pthread_create(&thread, NULL, attempt, &a);
		pthread_join(thread, NULL);
	}
	CUresult end = cuStreamEndCapture(capturing, &graph);
	if (a.result != (refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS) ||
		end != (refused ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS) || (graph == NULL) != refused)
		FAIL("%s, capture mode %d, thread mode %d, %s thread: %d, end %d", call->name, mode, thread_mode,
			same_thread ? "same" : "other", a.result, end);
	if (graph)
		OK(cuGraphDestroy(graph));
}

int main(void)
{
	CUcontext ctx = start();
	OK(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		for (int mode = GLOBAL; mode <= RELAXED; mode++)
			for (int thread_mode = GLOBAL; thread_mode <= RELAXED; thread_mode++)
				for (int same = 0; same <= 1; same++)
					check(&calls[i], mode, thread_mode, same, ctx);
	return done();
}
