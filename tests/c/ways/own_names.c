/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks names up in a library of its own that has functions called like the driver's: it must get that library's.
 *
 * Usage: own_names LIBRARY
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int failures;

static void expect(void *handle, const char *name, const char *file)
{
	Dl_info info = {0};
	void *found = dlsym(handle, name);
	if (!found || !dladdr(found, &info) || !strstr(info.dli_fname, file)) {
		printf("%s: %s, not %s\n", name, found ? info.dli_fname : "not found", file);
		failures++;
	}
}

int main(int argc, char **argv)
{
	void *own = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!own)
		return 2;
	const char *file = strrchr(argv[1], '/') + 1;
	expect(own, "cuInit", file);
	expect(own, "cuMemAlloc_v2", file);
	expect(own, "nvmlDeviceGetMemoryInfo", file);
	expect(own, "cudnnFoo", file);
	expect(own, "cuGetProcAddress_v2", file);
	/* The library's own look-ups on its own handle, which call what they find. */
	int (*inner)(void) = (int (*)(void))dlsym(own, "look_up_myself");
	if (!inner || inner() != 42) {
		puts("the library found something else than itself");
		failures++;
	}
	/* With the driver in the process it is still so. */
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	expect(own, "cuInit", file);
	expect(own, "cuMemAlloc_v2", file);
	if (cuda)
		expect(cuda, "cuMemAlloc_v2", "libgpulimit");
	return failures != 0;
}
