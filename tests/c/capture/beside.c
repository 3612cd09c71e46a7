/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread captures graphs and replays them while others launch, and, where the mode permits it, take and give back
 * memory, all under quota and limit.  No capture is ever spoilt, every graph has its nodes, and every replay runs.
 *
 * Usage: beside MODE SECONDS   (0 global, 1 thread-local, 2 relaxed)
 */
#include <pthread.h>

#include "any_memory.h"

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);

enum { NODES = 12, PIECES = 8 };
static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";
static struct any_place place;
static CUfunction spin;
static volatile bool stop;
static uint64_t launched, stepped;

static CUresult launch(CUstream stream, uint64_t ns)
{
	uint64_t out = 0;
	void *params[] = {&ns, &out};
	return cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static void *launching(void *unused)
{
	CUstream stream;
	(void)unused;
	OK(cuCtxSetCurrent(place.context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	while (!stop && !failures) {
		OK(launch(stream, 50000));
		__atomic_fetch_add(&launched, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void *allocating(void *unused)
{
	struct any_place own = place;
	struct any_piece pieces[PIECES] = {{ANY_NONE, 0}};
	uint64_t seed = 4711;
	(void)unused;
	OK(cuCtxSetCurrent(place.context));
	OK(cuStreamCreate(&own.stream, CU_STREAM_NON_BLOCKING));
	while (!stop && !failures) {
		OK(any_step(&own, pieces, PIECES, 12 << 20, &seed)); /* often at the quota */
		__atomic_fetch_add(&stepped, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void capture_once(CUstream stream, int mode)
{
	CUgraph graph = NULL;
	CUgraphExec exec;
	CUdeviceptr p;
	size_t nodes = 0;
	OK(cuStreamBeginCapture_v2(stream, mode));
	for (int i = 0; i < NODES - 2; i++)
		OK(launch(stream, 20000));
	CUresult r = cuMemAllocAsync(&p, 1000, stream);
	if (r == CUDA_SUCCESS)
		OK(cuMemFreeAsync(p, stream));
	else if (r != CUDA_ERROR_OUT_OF_MEMORY)
		FAIL("an allocation in the capture gave %d", r);
	OK(cuStreamEndCapture(stream, &graph));
	if (!graph)
		return;
	OK(cuGraphGetNodes(graph, NULL, &nodes));
	if (nodes != (r ? NODES - 2 : NODES))
		FAIL("the graph has %zu nodes", nodes);
	r = cuGraphInstantiateWithFlags(&exec, graph, 0);
	if (r == CUDA_SUCCESS) {
		OK(cuGraphLaunch(exec, stream));
		OK(cuStreamSynchronize(stream));
		OK(cuGraphExecDestroy(exec));
	} else if (r != CUDA_ERROR_OUT_OF_MEMORY) {
		FAIL("instantiating gave %d", r);
	}
	OK(cuGraphDestroy(graph));
}

int main(int argc, char **argv)
{
	CUmodule module;
	CUstream stream;
	pthread_t thread[4];
	int threads = 0, mode = argc > 1 ? atoi(argv[1]) : 0, captures = 0;
	uint64_t end = any_now_ns() + (uint64_t)((argc > 2 ? atof(argv[2]) : 1) * 1e9);
	OK(any_begin(&place));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&spin, module, "gpulimit_spin"));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	pthread_create(&thread[threads++], NULL, launching, NULL);
	pthread_create(&thread[threads++], NULL, launching, NULL);
	if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL) /* which forbids other threads' allocations, with or without a quota */
		pthread_create(&thread[threads++], NULL, allocating, NULL);
	while (any_now_ns() < end && !failures) {
		capture_once(stream, mode);
		captures++;
	}
	stop = true;
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	printf("captures %d launched %llu stepped %llu\n", captures, (unsigned long long)launched, (unsigned long long)stepped);
	return failures != 0;
}
