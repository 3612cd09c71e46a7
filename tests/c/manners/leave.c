/* SPDX-License-Identifier: Apache-2.0
 *
 * Leaves in one way or another while two threads keep launching, held back by a limit.
 * Usage: leave return|exit|quick|_exit|abort|segv|term|thread|atexit|detach
 */
#include <pthread.h>

#include "books.h"

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";
static CUcontext context;
static CUfunction f;
static CUdeviceptr memory;
static volatile bool wound_up;

static void *busy(void *unused)
{
	uint64_t ns = 2000000, out = 0;
	void *params[] = {&ns, &out};
	(void)unused;
	cuCtxSetCurrent(context);
	while (!wound_up && cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL) == CUDA_SUCCESS)
		;
	return NULL;
}

static void tidy(void)
{
	size_t free, total;
	cuCtxSetCurrent(context);
	printf("tidy %d %d\n", cuMemGetInfo_v2(&free, &total), cuMemFree_v2(memory));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";
	CUmodule module;
	pthread_t thread[2];
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc_v2(&memory, 8 << 20));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&f, module, "gpulimit_spin"));
	if (!strcmp(way, "atexit"))
		atexit(tidy);
	for (int i = 0; i < 2; i++)
		pthread_create(&thread[i], NULL, busy, NULL);
	usleep(100000);
	if (!strcmp(way, "exit") || !strcmp(way, "atexit"))
		exit(3);
	if (!strcmp(way, "quick"))
		quick_exit(4);
	if (!strcmp(way, "_exit"))
		_exit(5);
	if (!strcmp(way, "abort"))
		abort();
	if (!strcmp(way, "segv"))
		raise(SIGSEGV);
	if (!strcmp(way, "term"))
		kill(getpid(), SIGTERM), pause();
	if (!strcmp(way, "thread")) {
		wound_up = true;
		pthread_exit(NULL);
	}
	wound_up = true;
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	OK(cuMemFree_v2(memory));
	return failures ? 1 : 6;
}
