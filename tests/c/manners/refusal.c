/* SPDX-License-Identifier: Apache-2.0
 *
 * Says what the first CUDA calls answer: "INIT COUNT TOTAL RETAIN ALLOC TOO-MUCH".  Usage: refusal [nofile]
 * nofile: no descriptor is left when it makes the first call.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#include "books.h"

int main(int argc, char **argv)
{
	CUcontext context = NULL;
	CUdeviceptr p;
	int count;
	size_t total;
	if (argc > 1 && !strcmp(argv[1], "nofile")) {
		int lowest = open("/dev/null", O_RDONLY);
		struct rlimit limit = {(rlim_t)lowest, (rlim_t)lowest};
		close(lowest);
		if (setrlimit(RLIMIT_NOFILE, &limit))
			return 2;
	}
	printf("%d", cuInit(0));
	printf(" %d", cuDeviceGetCount(&count));
	printf(" %d", cuDeviceTotalMem_v2(&total, 0));
	printf(" %d", cuDevicePrimaryCtxRetain(&context, 0));
	cuCtxSetCurrent(context);
	printf(" %d", cuMemAlloc_v2(&p, 60 << 20));
	printf(" %d\n", cuMemAlloc_v2(&p, 8 << 20));
	return 0;
}
