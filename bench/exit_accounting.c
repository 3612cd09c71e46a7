/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches kernels of known length at once, and ends in one way or another; for exit_accounting.py.
 *
 *     burst KERNEL_NS COUNT WAIT END
 *
 *   WAIT  sync (cuCtxSynchronize), event (cuEventSynchronize), poll (cuStreamQuery), none
 *   END   return, fast (_exit), destroy (of the context), kill (SIGKILL)
 *
 * Says "ready" once its context is made, and begins when a line comes.  The first kernel, of 2 ms, lets the rest queue up
 * behind it.  Prints "TOTAL BEGIN END": how long all of them took by events of its own (0: not known), and host times
 * in ns before the first launch and after the wait.  Links the driver plainly.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../csrc/abi.h"

CUresult cuInit(unsigned int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuStreamCreate(CUstream *, unsigned int);
CUresult cuStreamQuery(CUstream);
CUresult cuEventCreate(CUevent *, unsigned int);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventSynchronize(CUevent);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

#define FIRST_NS 2000000ull
#define CHECK(call)                                                                  \
	do {                                                                         \
		CUresult got_ = (call);                                              \
		if (got_) {                                                          \
			fprintf(stderr, "%s: error %d\n", #call, got_);              \
			exit(3);                                                     \
		}                                                                    \
	} while (0)

static const char ptx[] =
	".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 p_ns, .param .u64 p_out)\n{\n"
	".reg .pred %done;\n.reg .b64 %ns, %start, %now, %spent;\n"
	"ld.param.u64 %ns, [p_ns];\nmov.u64 %start, %globaltimer;\n"
	"SPIN:\nmov.u64 %now, %globaltimer;\nsub.u64 %spent, %now, %start;\nsetp.ge.u64 %done, %spent, %ns;\n"
	"@!%done bra SPIN;\nret;\n}\n";

static CUfunction spin;
static CUstream stream;

static void launch(unsigned long long ns, unsigned block)
{
	unsigned long long out = 0;
	void *params[] = {&ns, &out};
	CHECK(cuLaunchKernel(spin, 1, 1, 1, block, 1, 1, 0, stream, params, NULL));
}

static long long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void await(const char *wait, CUevent last)
{
	if (!strcmp(wait, "sync"))
		CHECK(cuCtxSynchronize());
	else if (!strcmp(wait, "event"))
		CHECK(cuEventSynchronize(last));
	while (!strcmp(wait, "poll") && cuStreamQuery(stream))
		usleep(100);
}

int main(int argc, char **argv)
{
	CUcontext context;
	CUmodule module;
	CUevent first, last;
	char line[16];
	float ms = 0;
	if (argc != 5)
		return 2;
	unsigned long long kernel_ns = strtoull(argv[1], NULL, 0), count = strtoull(argv[2], NULL, 0);
	CHECK(cuInit(0));
	CHECK(cuCtxCreate_v2(&context, 0, 0));
	CHECK(cuModuleLoadData(&module, ptx));
	CHECK(cuModuleGetFunction(&spin, module, "gpulimit_spin"));
	CHECK(cuStreamCreate(&stream, 1));
	CHECK(cuEventCreate(&first, 0));
	CHECK(cuEventCreate(&last, 0));
	launch(1000, 64); /* code is loaded at its first launch */
	CHECK(cuCtxSynchronize());
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 2;
	long long begin = now_ns();
	CHECK(cuEventRecord(first, stream));
	launch(FIRST_NS, 64);
	for (unsigned long long i = 0; i < count; i++)
		launch(kernel_ns, 32);
	CHECK(cuEventRecord(last, stream));
	await(argv[3], last);
	if (strcmp(argv[3], "none"))
		CHECK(cuEventElapsedTime(&ms, first, last));
	printf("%.0f %lld %lld\n", (double)ms * 1e6, begin, now_ns());
	fflush(stdout);
	if (!strcmp(argv[4], "fast"))
		_exit(0);
	if (!strcmp(argv[4], "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(argv[4], "destroy"))
		CHECK(cuCtxDestroy_v2(context));
	return 0;
}
