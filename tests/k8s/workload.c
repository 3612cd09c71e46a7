/* SPDX-License-Identifier: Apache-2.0
 *
 * A program in a pod: says again and again how much memory its card has, and whether it can have some of it.
 *
 * Usage: workload MIB | wait
 * Prints a line every 100 ms: "total BYTES alloc RESULT", or "error CALL RESULT" and tries again.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int call();

static void *driver;

static call *find(const char *name)
{
	call *found = (call *)dlsym(driver, name);
	if (!found) {
		printf("error %s missing\n", name);
		exit(1);
	}
	return found;
}

static int begin(void)
{
	void *context;
	int device, result = find("cuInit")(0);
	if (result || (result = find("cuDeviceGet")(&device, 0)) || (result = find("cuCtxCreate_v2")(&context, 0, device)))
		printf("error begin %d\n", result);
	return result;
}

int main(int argc, char **argv)
{
	size_t wanted = (size_t)(argc > 1 ? atoi(argv[1]) : 1) << 20, left, total;
	uint64_t memory;

	while (argc > 1 && strcmp(argv[1], "wait") == 0)
		pause();

	setvbuf(stdout, NULL, _IOLBF, 0);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) {
		printf("error dlopen %s\n", dlerror());
		return 1;
	}
	if (begin())
		return 1;
	for (;; usleep(100000)) {
		int result = find("cuMemGetInfo_v2")(&left, &total);
		if (result) {
			printf("error cuMemGetInfo %d\n", result);
			continue;
		}
		result = find("cuMemAlloc_v2")(&memory, wanted);
		if (!result)
			find("cuMemFree_v2")(memory);
		printf("total %zu alloc %d\n", total, result);
	}
}
