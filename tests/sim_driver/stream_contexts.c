/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and events of a context that is not the current one.  tests/gpu runs this on the real driver, too.
 */
#include "driver.h"

CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx);
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);

static const char ptx[] =
	".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry empty() { ret; }\n";

struct place {
	CUcontext context;
	CUstream stream;
	CUfunction function;
	CUevent event[2];
};

static struct place make(void)
{
	struct place p;
	CUmodule module;
	OK(cuCtxCreate_v2(&p.context, 0, 0));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&p.function, module, "empty"));
	OK(cuStreamCreate(&p.stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 2; i++)
		OK(cuEventCreate(&p.event[i], CU_EVENT_DEFAULT));
	return p;
}

static CUresult run(CUfunction f, CUstream stream)
{
	return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

int main(void)
{
	CUlibrary library;
	CUkernel kernel;
	CUcontext whose = NULL;
	float ms = -1;
	OK(cuInit(0));
	struct place other = make(), here = make();
	OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "empty"));
	OK(cuStreamGetCtx(other.stream, &whose));
	SAME(1, whose == other.context);
	/* Code without a context runs where the stream is; a function only in its own. */
	OK(run((CUfunction)kernel, other.stream));
	OK(run((CUfunction)kernel, here.stream));
	OK(run(other.function, other.stream));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, run(here.function, other.stream));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, run(other.function, here.stream));
	/* Likewise events, but for being waited for, asked and compared. */
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(here.event[0], other.stream));
	for (int i = 0; i < 2; i++)
		OK(cuEventRecord(other.event[i], other.stream));
	OK(cuStreamWaitEvent(here.stream, other.event[1], 0));
	OK(cuStreamSynchronize(other.stream));
	OK(cuStreamQuery(other.stream));
	OK(cuEventQuery(other.event[1]));
	OK(cuEventElapsedTime(&ms, other.event[0], other.event[1]));
	SAME(1, ms >= 0);
	return failures != 0;
}
