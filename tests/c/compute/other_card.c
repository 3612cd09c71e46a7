/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps card 1 busy while card 0 is current.
 *
 * Usage: other_card HOW SECONDS KERNEL_NS
 *   HOW  kernel (CUkernel on a stream of card 1), function (of card 1's context), graph, nothing (no context is current),
 *        multi (one cooperative launch on both cards)
 * Prints "ready", and in the end how many kernels it launched.
 */
#include "any_memory.h"

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";
static CUcontext context[2];
static CUfunction function[2];
static CUstream stream[2];
static CUkernel kernel;
static uint64_t kernel_ns, out;
static void *params[] = {&kernel_ns, &out};

static void prepare(void)
{
	CUmodule module;
	CUlibrary library;
	OK(cuInit(0));
	for (int i = 0; i < 2; i++) {
		OK(cuDevicePrimaryCtxRetain(&context[i], i));
		OK(cuCtxSetCurrent(context[i]));
		OK(cuModuleLoadData(&module, ptx));
		OK(cuModuleGetFunction(&function[i], module, "gpulimit_spin"));
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
	}
	OK(cuCtxSetCurrent(context[0]));
	OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "gpulimit_spin"));
}

static CUgraphExec make_graph(void)
{
	CUgraph graph;
	CUgraphExec exec;
	OK(cuStreamBeginCapture_v2(stream[1], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(cuLaunchKernel(function[1], 1, 1, 1, 32, 1, 1, 0, stream[1], params, NULL));
	OK(cuStreamEndCapture(stream[1], &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static CUresult launch(const char *how, CUgraphExec exec)
{
	CUDA_LAUNCH_PARAMS both[2] = {
		{function[0], 1, 1, 1, 32, 1, 1, 0, stream[0], params},
		{function[1], 1, 1, 1, 32, 1, 1, 0, stream[1], params},
	};
	if (!strcmp(how, "graph"))
		return cuGraphLaunch(exec, stream[1]);
	if (!strcmp(how, "multi"))
		return cuLaunchCooperativeKernelMultiDevice(both, 2, 0);
	return cuLaunchKernel(!strcmp(how, "function") ? function[1] : (CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, stream[1], params,
			      NULL);
}

int main(int argc, char **argv)
{
	CUgraphExec exec = NULL;
	uint64_t launches = 0;
	if (argc < 4)
		return 2;
	kernel_ns = strtoull(argv[3], NULL, 0);
	prepare();
	if (!strcmp(argv[1], "graph"))
		exec = make_graph();
	if (!strcmp(argv[1], "nothing"))
		OK(cuCtxSetCurrent(NULL));
	puts("ready");
	fflush(stdout);
	uint64_t end = any_now_ns() + (uint64_t)(atof(argv[2]) * 1e9);
	for (; any_now_ns() < end && !failures; launches++)
		OK(launch(argv[1], exec));
	OK(cuStreamSynchronize(stream[1]));
	printf("%llu\n", (unsigned long long)launches);
	return failures != 0;
}
