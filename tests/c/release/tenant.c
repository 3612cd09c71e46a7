/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant that lives through an upgrade: holds 32 MiB, launches a short kernel now and then, and asks for more than
 * its quota once in a while.  Ends at SIGTERM, after looking at its memory once more.
 *
 * Usage: tenant NUMBER     Prints: launches N refused N wrong N
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "books.h"

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);

#define HELD (32u << 20)
#define TOO_MUCH ((size_t)1 << 30)

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";
static volatile sig_atomic_t stop;

static void on_term(int number)
{
	(void)number;
	stop = 1;
}

int main(int argc, char **argv)
{
	uint64_t ns = 50000, out = 0;
	void *params[] = {&ns, &out};
	unsigned launches = 0, refused = 0, wrong = 0, mark = argc > 1 ? (unsigned)atoi(argv[1]) : 0, seen = 0;
	CUcontext context;
	CUmodule module;
	CUfunction spin;
	CUdeviceptr held, more;

	signal(SIGTERM, on_term);
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&spin, module, "gpulimit_spin"));
	OK(cuMemAlloc_v2(&held, HELD));
	OK(cuMemcpyHtoD_v2(held, &mark, sizeof mark));
	puts("ready");
	fflush(stdout);
	while (!stop && !failures) {
		wrong += cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL) != CUDA_SUCCESS;
		launches++;
		wrong += cuCtxSynchronize() != CUDA_SUCCESS;
		if (launches % 10 == 1) {
			CUresult r = cuMemAlloc_v2(&more, TOO_MUCH);

			refused += r == CUDA_ERROR_OUT_OF_MEMORY;
			wrong += r != CUDA_ERROR_OUT_OF_MEMORY;
		}
		usleep(100000);
	}
	wrong += cuMemcpyDtoH_v2(&seen, held, sizeof seen) != CUDA_SUCCESS || seen != mark;
	printf("launches %u refused %u wrong %u\n", launches, refused, wrong);
	return failures || wrong || !refused;
}
