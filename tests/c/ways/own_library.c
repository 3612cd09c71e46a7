/* SPDX-License-Identifier: Apache-2.0
 *
 * A library with functions called like the driver's and like cuDNN's, which looks itself up by name.
 */
#include <dlfcn.h>

#define OWN __attribute__((visibility("default")))
OWN int cuInit(unsigned flags) { (void)flags; return 42; }
OWN int cuMemAlloc_v2(void) { return 42; }
OWN int nvmlDeviceGetMemoryInfo(void) { return 42; }
OWN int cuGetProcAddress_v2(void) { return 42; }
OWN int cudnnFoo(void) { return 42; }

OWN int look_up_myself(void)
{
	Dl_info info;
	void *self = dladdr((void *)look_up_myself, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : 0;
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(self, "cuInit");
	int (*foo)(void) = (int (*)(void))dlsym(self, "cudnnFoo");
	int (*alloc)(void) = (int (*)(void))dlvsym(self, "cuMemAlloc_v2", "ANY_1.0");
	return init && foo && alloc && init(0) == 42 && alloc() == 42 ? foo() : 0;
}
