/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes each kind of call while a capture is open, for each mode of capture, from the capturing thread and from another,
 * and prints what the call and the end of the capture answered.  The output must not differ with the library.
 *
 * Usage: differ [busy]   busy: with work under way in another stream, so that a limited process is held back and measured
 */
#include <pthread.h>

#include "any_memory.h"

CUresult cuStreamQuery(CUstream stream);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n.visible .entry plain() { ret; }\n";
static CUcontext context;
static CUstream capturing, other;
static CUfunction spin, plain;
static CUgraph spare_graph;
static CUgraphExec spare_exec;
static CUdeviceptr held[4096], held_async[4096];
static CUarray held_array[256];
static int next_held, next_async, next_array;
static CUmemoryPool held_pool;
static bool busy;

static CUresult launch(CUstream stream, uint64_t ns)
{
	uint64_t out = 0;
	void *params[] = {&ns, &out};
	return cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static CUresult launch_here(void) { return launch(capturing, 1000); }
static CUresult launch_elsewhere(void) { return launch(other, 1000); }
static CUresult launch_many(void)
{
	CUresult r = CUDA_SUCCESS;
	for (int i = 0; i < 300 && !r; i++)
		r = launch(other, 20000);
	return r;
}
static CUresult launch_new_kernel(void) { return cuLaunchKernel(plain, 1, 1, 1, 32, 1, 1, 0, other, NULL, NULL); }
static CUresult launch_legacy(void) { return launch(NULL, 1000); }
static CUresult launch_graph(void) { return cuGraphLaunch(spare_exec, other); }
static CUresult alloc(void)
{
	CUdeviceptr p;
	CUresult r = cuMemAlloc_v2(&p, 1000);
	return r ? r : cuMemFree_v2(p);
}
static CUresult alloc_large(void)
{
	CUdeviceptr p;
	CUresult r = cuMemAlloc_v2(&p, 40 << 20); /* enough for the library to look at what the card holds */
	return r ? r : cuMemFree_v2(p);
}
static CUresult give(void) { return cuMemFree_v2(held[next_held++]); }
static CUresult give_unknown(void) { return cuMemFree_v2(0x1234); }
static CUresult pitched(void)
{
	CUdeviceptr p;
	size_t pitch;
	CUresult r = cuMemAllocPitch_v2(&p, &pitch, 100, 100, 4);
	return r ? r : cuMemFree_v2(p);
}
static CUresult managed(void)
{
	CUdeviceptr p;
	CUresult r = cuMemAllocManaged(&p, 1000, 1);
	return r ? r : cuMemFree_v2(p);
}
static CUresult array(void)
{
	CUDA_ARRAY_DESCRIPTOR flat = {64, 64, CU_AD_FORMAT_FLOAT, 1};
	CUarray a;
	CUresult r = cuArrayCreate_v2(&a, &flat);
	return r ? r : cuArrayDestroy(a);
}
static CUresult array_destroy(void) { return cuArrayDestroy(held_array[next_array++]); }
static CUresult async_here(void)
{
	CUdeviceptr p;
	CUresult r = cuMemAllocAsync(&p, 1000, capturing);
	return r ? r : cuMemFreeAsync(p, capturing);
}
static CUresult async_elsewhere(void)
{
	CUdeviceptr p;
	CUresult r = cuMemAllocAsync(&p, 1000, other);
	return r ? r : cuMemFreeAsync(p, other);
}
static CUresult async_give(void) { return cuMemFreeAsync(held_async[next_async++], other); }
static CUresult async_given_plainly(void) { return cuMemFree_v2(held_async[next_async++]); }
static CUresult plain_given_async(void) { return cuMemFreeAsync(held[next_held++], other); }
static CUresult from_pool(void)
{
	CUdeviceptr p;
	CUresult r = cuMemAllocFromPoolAsync(&p, 1000, held_pool, other);
	return r ? r : cuMemFreeAsync(p, other);
}
static CUresult pool(void)
{
	CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool p;
	CUresult r = cuMemPoolCreate(&p, &props);
	return r ? r : cuMemPoolDestroy(p);
}
static CUresult pool_trim(void) { return cuMemPoolTrimTo(held_pool, 0); }
static CUresult vmm(void)
{
	CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle h;
	CUresult r = cuMemCreate(&h, 2 << 20, &prop, 0);
	return r ? r : cuMemRelease(h);
}
static CUresult info(void)
{
	size_t free, total;
	return cuMemGetInfo_v2(&free, &total);
}
static CUresult total(void)
{
	size_t bytes;
	return cuDeviceTotalMem_v2(&bytes, 0);
}
static CUresult module(void)
{
	CUmodule m;
	CUresult r = cuModuleLoadData(&m, ptx);
	return r ? r : cuModuleUnload(m);
}
static CUresult second_context(void)
{
	CUcontext c, popped;
	CUresult r = cuCtxCreate_v2(&c, 0, 0);
	if (r)
		return r;
	r = cuCtxDestroy_v2(c);
	(void)popped;
	CUresult set = cuCtxSetCurrent(context);
	return r ? r : set;
}
static CUresult retain(void)
{
	CUcontext c;
	CUresult r = cuDevicePrimaryCtxRetain(&c, 0);
	return r ? r : cuDevicePrimaryCtxRelease_v2(0);
}
static CUresult instantiate(void)
{
	CUgraphExec e;
	CUresult r = cuGraphInstantiateWithFlags(&e, spare_graph, 0);
	return r ? r : cuGraphExecDestroy(e);
}
static CUresult upload(void) { return cuGraphUpload(spare_exec, other); }
static CUresult graph_with_memory(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS np = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 1000};
	CUgraph g;
	CUgraphNode a, f;
	CUresult r = cuGraphCreate(&g, 0);
	r = r ? r : cuGraphAddMemAllocNode(&a, g, NULL, 0, &np);
	r = r ? r : cuGraphAddMemFreeNode(&f, g, &a, 1, np.dptr);
	return r ? r : cuGraphDestroy(g);
}
static CUresult graph_trim(void) { return cuDeviceGraphMemTrim(0); }
static CUresult stream(void)
{
	CUstream s;
	CUresult r = cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	r = r ? r : launch(s, 1000);
	return r ? r : cuStreamDestroy_v2(s);
}
static CUresult wait_event(void)
{
	CUevent e;
	CUresult r = cuEventCreate(&e, 0);
	r = r ? r : cuEventRecord(e, other);
	r = r ? r : cuStreamWaitEvent(other, e, 0);
	return r ? r : cuEventDestroy_v2(e);
}
static CUresult nested_capture(void)
{
	CUstream s;
	CUgraph g = NULL;
	CUresult r = cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	r = r ? r : cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED);
	r = r ? r : launch(s, 1000);
	r = r ? r : cuStreamEndCapture(s, &g);
	r = r ? r : cuGraphDestroy(g);
	return r ? r : cuStreamDestroy_v2(s);
}
static CUresult nvml(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	nvmlProcessInfo_v2_t infos[64];
	unsigned count = 64;
	if (nvmlDeviceGetHandleByIndex_v2(0, &device) || nvmlDeviceGetMemoryInfo(device, &memory))
		return 1;
	return (CUresult)nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos);
}
static CUresult limit(void) { return cuCtxSetLimit(0, 2048); }

#define ACTION(name) {#name, name}
static const struct {
	const char *name;
	CUresult (*make)(void);
} actions[] = {
	ACTION(launch_here), ACTION(launch_elsewhere), ACTION(launch_many), ACTION(launch_new_kernel), ACTION(launch_legacy),
	ACTION(launch_graph), ACTION(alloc), ACTION(alloc_large), ACTION(give), ACTION(give_unknown), ACTION(pitched),
	ACTION(managed), ACTION(array), ACTION(array_destroy), ACTION(async_here), ACTION(async_elsewhere), ACTION(async_give),
	ACTION(async_given_plainly), ACTION(plain_given_async), ACTION(from_pool), ACTION(pool), ACTION(pool_trim), ACTION(vmm),
	ACTION(info), ACTION(total), ACTION(module), ACTION(second_context), ACTION(retain), ACTION(instantiate), ACTION(upload),
	ACTION(graph_with_memory), ACTION(graph_trim), ACTION(stream), ACTION(wait_event), ACTION(nested_capture), ACTION(nvml),
	ACTION(limit),
};

struct attempt {
	CUresult (*make)(void);
	int mode;
	CUresult result;
};

static void *attempt(void *object)
{
	struct attempt *a = object;
	CUstreamCaptureMode mode = a->mode;
	OK(cuCtxSetCurrent(context));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	a->result = a->make();
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	if (mode != a->mode)
		FAIL("the thread's mode became %d", mode);
	return NULL;
}

static void check(unsigned action, int mode, int thread_mode, bool same)
{
	struct attempt a = {actions[action].make, thread_mode, 0};
	CUgraph graph = NULL;
	size_t nodes = 0;
	for (int i = 0; busy && i < 3; i++) { /* not measured to their end when the capture begins */
		OK(launch(other, 100000));
		OK(launch(NULL, 10000));
		OK(launch(capturing, 10000));
	}
	OK(cuStreamBeginCapture_v2(capturing, mode));
	if (same) {
		attempt(&a);
	} else {
		pthread_t thread;
		pthread_create(&thread, NULL, attempt, &a);
		pthread_join(thread, NULL);
	}
	CUresult end = cuStreamEndCapture(capturing, &graph);
	if (graph) {
		OK(cuGraphGetNodes(graph, NULL, &nodes));
		OK(cuGraphDestroy(graph));
	}
	printf("%s capture %d thread %d %s: %d, end %d, %zu nodes\n", actions[action].name, mode, thread_mode,
	       same ? "same" : "other", a.result, end, nodes);
}

static void set_up(void)
{
	CUmodule m;
	CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUDA_ARRAY_DESCRIPTOR flat = {64, 64, CU_AD_FORMAT_FLOAT, 1};
	OK(cuInit(0));
	if (nvmlInit_v2())
		FAIL("NVML");
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&capturing, 0));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	OK(cuModuleLoadData(&m, ptx));
	OK(cuModuleGetFunction(&spin, m, "gpulimit_spin"));
	OK(cuModuleGetFunction(&plain, m, "plain"));
	OK(cuMemPoolCreate(&held_pool, &props));
	for (int i = 0; i < 100; i++)
		OK(cuMemAlloc_v2(&held[i], 1000));
	for (int i = 0; i < 100; i++)
		OK(cuMemAllocAsync(&held_async[i], 1000, other));
	for (int i = 0; i < 50; i++)
		OK(cuArrayCreate_v2(&held_array[i], &flat));
	OK(cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(launch(capturing, 1000));
	OK(cuStreamEndCapture(capturing, &spare_graph));
	OK(cuGraphInstantiateWithFlags(&spare_exec, spare_graph, 0));
	OK(cuGraphLaunch(spare_exec, other));
	OK(cuStreamSynchronize(other));
}

int main(int argc, char **argv)
{
	busy = argc > 1 && !strcmp(argv[1], "busy");
	set_up();
	for (unsigned action = 0; action < sizeof actions / sizeof *actions; action++)
		for (int mode = 0; mode <= 2; mode++)
			for (int thread_mode = 0; thread_mode <= 2; thread_mode++)
				for (int same = 0; same <= 1; same++)
					check(action, mode, thread_mode, same);
	return failures != 0;
}
