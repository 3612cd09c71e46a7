/* SPDX-License-Identifier: Apache-2.0
 *
 * Code that is unloaded, and other code whose function gets the same handle: what the first was measured to cost says
 * nothing about the second.  argv[1]: "module" or "library".  Prints how many ms of GPU time launches were let go for in
 * the first 100 ms of the second function, which takes much longer than the first.
 */
#include <time.h>

#include "books.h"

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);

enum { SHORT_NS = 20000, LONG_NS = 4000000, LAUNCHES = 2000, WINDOW_MS = 100 };

static const char ptx[] =
	".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";

static bool by_library;
static CUmodule module;
static CUlibrary library;

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static CUfunction load(void)
{
	CUfunction f = NULL;
	CUkernel kernel;
	if (!by_library) {
		OK(cuModuleLoadData(&module, ptx));
		OK(cuModuleGetFunction(&f, module, "gpulimit_spin"));
		return f;
	}
	OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "gpulimit_spin"));
	OK(cuKernelGetFunction(&f, kernel));
	return f;
}

static void unload(void)
{
	OK(by_library ? cuLibraryUnload(library) : cuModuleUnload(module));
}

static void launch(CUfunction f, uint64_t ns)
{
	uint64_t out = 0;
	void *params[] = {&ns, &out};
	OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
}

int main(int argc, char **argv)
{
	CUdevice dev;
	CUcontext context;
	by_library = argc > 1 && !strcmp(argv[1], "library");
	OK(cuInit(0));
	OK(cuDeviceGet(&dev, 0));
	OK(cuDevicePrimaryCtxRetain(&context, dev));
	OK(cuCtxSetCurrent(context));
	CUfunction first = load();
	for (int i = 0; i < LAUNCHES; i++)
		launch(first, SHORT_NS);
	OK(cuCtxSynchronize());
	unload();
	CUfunction second = load();
	if (second != first)
		FAIL("the handle was not given out again");
	int launched = 0;
	for (double start = now_ms(); now_ms() - start < WINDOW_MS; launched++)
		launch(second, LONG_NS);
	printf("%d\n", launched * (LONG_NS / 1000000));
	OK(cuCtxSynchronize());
	return failures != 0;
}
