/* SPDX-License-Identifier: Apache-2.0
 *
 * Under quota the per-thread twin of a launch still means the thread's own default stream, and the plain one the
 * legacy stream: after a long kernel, asks which of the two has work.
 */
#include "books.h"

CUresult cuStreamQuery_ptsz(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";
static CUfunction f;
static CUgraphExec exec;
static uint64_t ns = 30000000, out;
static void *params[] = {&ns, &out};

static CUresult kernel(bool own)
{
	return (own ? cuLaunchKernel_ptsz : cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL);
}

static CUresult kernel_ex(bool own)
{
	CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
	return (own ? cuLaunchKernelEx_ptsz : cuLaunchKernelEx)(&config, f, params, NULL);
}

static CUresult cooperative(bool own)
{
	return (own ? cuLaunchCooperativeKernel_ptsz : cuLaunchCooperativeKernel)(f, 1, 1, 1, 32, 1, 1, 0, NULL, params);
}

static CUresult graph(bool own)
{
	return (own ? cuGraphLaunch_ptsz : cuGraphLaunch)(exec, NULL);
}

static CUresult explicit_handle(bool own)
{
	return cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, own ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY, params, NULL);
}

static const struct {
	const char *name;
	CUresult (*launch)(bool own);
} launches[] = {{"kernel", kernel}, {"kernel_ex", kernel_ex}, {"cooperative", cooperative}, {"graph", graph},
		{"explicit handle", explicit_handle}};

static void make_graph(void)
{
	CUstream stream;
	CUgraph recorded;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
	OK(cuStreamEndCapture(stream, &recorded));
	OK(cuGraphInstantiateWithFlags(&exec, recorded, 0));
}

int main(int argc, char **argv)
{
	CUcontext context;
	CUmodule module;
	start_card(argc, argv);
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&f, module, "gpulimit_spin"));
	make_graph();
	for (unsigned i = 0; i < sizeof launches / sizeof *launches; i++) {
		OK(cuCtxSynchronize());
		OK(launches[i].launch(true));
		CUresult r = cuStreamQuery(CU_STREAM_PER_THREAD);
		if (r != CUDA_ERROR_NOT_READY)
			FAIL("%s: the per-thread twin did not use the thread's stream (%d)", launches[i].name, r);
		OK(cuCtxSynchronize());
		OK(launches[i].launch(false));
		if ((r = cuStreamQuery(CU_STREAM_PER_THREAD)) != CUDA_SUCCESS)
			FAIL("%s: the plain call used the thread's stream (%d)", launches[i].name, r);
		EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
	}
	OK(cuCtxSynchronize());
	return failures != 0;
}
