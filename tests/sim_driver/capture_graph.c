/* SPDX-License-Identifier: Apache-2.0
 *
 * Captured work runs when the graph is launched and not before, forked streams must be joined, and the
 * legacy stream cannot be used beside the capture of a blocking stream.
 */
#include "driver.h"

static CUdeviceptr out;

static uint64_t count(void)
{
	uint64_t n = 0;
	OK(cuCtxSynchronize());
	OK(cuMemcpyDtoH_v2(&n, out, 8));
	return n;
}

static void bump(void *n) { ++*(volatile int *)n; }

int main(void)
{
	CUstream a, b;
	CUevent fork_point, join_point;
	CUgraph graph;
	CUgraphExec exec;
	CUstreamCaptureStatus status;
	CUdeviceptr temporary;
	size_t nodes = 0;
	volatile int calls = 0;

	start();
	CUfunction f = kernel("gpulimit_spin");
	OK(cuMemAlloc_v2(&out, 8));
	OK(cuMemsetD32_v2(out, 0, 2));
	OK(cuStreamCreate(&a, CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&fork_point, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&join_point, CU_EVENT_DISABLE_TIMING));

	OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	EXPECT(401, cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(spin(f, a, 1000000, out));
	OK(cuEventRecord(fork_point, a));
	OK(cuStreamWaitEvent(b, fork_point, 0));
	OK(spin(f, b, 1000000, out));
	OK(cuStreamIsCapturing(b, &status));
	SAME(CU_STREAM_CAPTURE_STATUS_ACTIVE, status);
	EXPECT(903, cuStreamEndCapture(b, &graph));
	OK(cuEventRecord(join_point, b));
	OK(cuStreamWaitEvent(a, join_point, 0));
	OK(cuMemAllocAsync(&temporary, 100, a));
	OK(cuMemsetD8Async(temporary, 1, 100, a)); /* recorded: the memory is taken at the launch */
	OK(cuMemFreeAsync(temporary, a));
	OK(cuLaunchHostFunc(a, bump, (void *)&calls));
	OK(cuStreamEndCapture(a, &graph));
	OK(cuStreamIsCapturing(b, &status));
	SAME(CU_STREAM_CAPTURE_STATUS_NONE, status);
	OK(cuGraphGetNodes(graph, NULL, &nodes));
	SAME(6, nodes);
	SAME(0, count());
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphDestroy(graph));
	double begin = now_ms();
	for (int i = 0; i < 5; i++)
		OK(cuGraphLaunch(exec, a));
	OK(cuStreamSynchronize(a));
	WITHIN(9.9, now_ms() - begin, 60);
	SAME(10, count());
	SAME(5, calls);
	OK(cuGraphExecDestroy(exec));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, a));

	OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuEventRecord(fork_point, a));
	OK(cuStreamWaitEvent(b, fork_point, 0));
	OK(spin(f, b, 1000, out));
	EXPECT(904, cuStreamEndCapture(a, &graph)); /* b was not joined */
	OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(906, spin(f, NULL, 1000, out));
	EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(a, &graph));
	OK(cuEventRecord(join_point, b));
	OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(905, cuStreamWaitEvent(a, join_point, 0));
	EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(a, &graph));
	EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
	EXPECT(401, cuStreamEndCapture(a, &graph));
	SAME(10, count());
	return done();
}
