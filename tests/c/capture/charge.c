/* SPDX-License-Identifier: Apache-2.0
 *
 * What is recorded is not charged and does not wait; what is replayed is.  Runs under a limit of 10 percent.
 */
#include "any_memory.h"

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";
static CUfunction spin;

static CUresult launch(CUstream stream, uint64_t ns)
{
	uint64_t out = 0;
	void *params[] = {&ns, &out};
	return cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static uint64_t spent(void)
{
	return __atomic_load_n(&books()->device[0].spent_ns, __ATOMIC_ACQUIRE);
}

int main(void)
{
	struct any_place place;
	CUmodule module;
	CUgraph graph;
	CUgraphExec exec;
	OK(any_begin(&place));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&spin, module, "gpulimit_spin"));
	for (int i = 0; i < 10; i++) /* known, and over the limit: the next launch that runs has to wait */
		OK(launch(place.stream, 10000000));
	OK(cuCtxSynchronize());
	uint64_t before = spent(), start = any_now_ns();
	OK(cuStreamBeginCapture_v2(place.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 1000; i++)
		OK(launch(place.stream, 10000000));
	uint64_t took = any_now_ns() - start;
	OK(cuStreamEndCapture(place.stream, &graph));
	if (took > 300000000)
		FAIL("recording took %.0f ms", (double)took / 1e6);
	if (spent() - before > 110000000) /* at most the rest of the ten kernels before, as they are measured */
		FAIL("recording was charged: %.1f ms", (double)(spent() - before) / 1e6);
	if (account()->launches[GL_CAPTURED] != 1000)
		FAIL("%llu launches were seen as recorded", (unsigned long long)account()->launches[GL_CAPTURED]);
	OK(cuGraphDestroy(graph));
	/* Of a smaller one each replay costs what its kernels take. */
	OK(cuStreamBeginCapture_v2(place.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 10; i++)
		OK(launch(place.stream, 200000));
	OK(cuStreamEndCapture(place.stream, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (int i = 0; i < 5; i++) { /* until it is known */
		OK(cuGraphLaunch(exec, place.stream));
		OK(cuStreamSynchronize(place.stream));
	}
	OK(cuGraphLaunch(exec, place.stream));
	OK(cuCtxSynchronize());
	before = spent();
	for (int i = 0; i < 50; i++)
		OK(cuGraphLaunch(exec, place.stream));
	OK(cuCtxSynchronize());
	OK(cuGraphLaunch(exec, place.stream)); /* takes the last marks in */
	double per_launch = (double)(spent() - before) / 51e6;
	if (per_launch < 1.8 || per_launch > 2.3)
		FAIL("a replay of 2 ms was charged %.2f ms", per_launch);
	if (account()->launches[GL_GRAPH] != 57)
		FAIL("%llu replays", (unsigned long long)account()->launches[GL_GRAPH]);
	return failures != 0;
}
