/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that reaches the driver in one way only, takes memory up to the quota of 64 MiB and tries to go over it,
 * and launches a kernel.  It says "refused" when the last allocation gave out of memory, else what happened.
 *
 * Usage: reach WAY   (linked handle default next null dlvsym proc1 proc2 chain ptsz library)
 *        reach thread WAY: the first call of the process comes from another thread than main
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

#define MIB (1ull << 20)

typedef CUresult first_type(const char *, void **, int, unsigned long long);
typedef CUresult second_type(const char *, void **, int, unsigned long long, int *);

#ifdef LINKED
void cuInit(void), cuDevicePrimaryCtxRetain(void), cuCtxSetCurrent(void), cuMemAlloc_v2(void), cuLaunchKernel(void),
	cuModuleLoadData(void), cuModuleGetFunction(void), cuCtxSynchronize(void);
static const struct {
	const char *name;
	void (*address)(void);
} linked[] = {{"cuInit", cuInit}, {"cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain},
	      {"cuCtxSetCurrent", cuCtxSetCurrent}, {"cuMemAlloc", cuMemAlloc_v2}, {"cuLaunchKernel", cuLaunchKernel},
	      {"cuModuleLoadData", cuModuleLoadData}, {"cuModuleGetFunction", cuModuleGetFunction},
	      {"cuCtxSynchronize", cuCtxSynchronize}};
#endif

static const char *way;
static void *cuda;

static void *by_proc_address(const char *name)
{
	void *found = NULL, *itself = NULL;
	if (!strcmp(way, "proc1"))
		((first_type *)dlsym(cuda, "cuGetProcAddress"))(name, &found, 11030, 0);
	second_type *ask = (second_type *)dlsym(cuda, "cuGetProcAddress_v2");
	if (!strcmp(way, "proc2") || !strcmp(way, "ptsz"))
		ask(name, &found, 12000, way[1] == 't' ? 2 : 0, NULL);
	if (!strcmp(way, "chain")) {
		for (int depth = 0; depth < 5; depth++) {
			if (ask("cuGetProcAddress", &itself, 12000, 0, NULL))
				return NULL;
			ask = (second_type *)itself;
		}
		ask(name, &found, 12000, 0, NULL);
	}
	return found;
}

static void *get(const char *name)
{
	char newest[64];
	void *found = NULL;
	snprintf(newest, sizeof newest, "%s%s", name, !strcmp(name, "cuMemAlloc") ? "_v2" : "");
#ifdef LINKED
	for (unsigned i = 0; i < sizeof linked / sizeof *linked; i++)
		if (!strcmp(linked[i].name, name))
			return (void *)linked[i].address;
#endif
	if (!strcmp(way, "handle"))
		found = dlsym(cuda, newest);
	else if (!strcmp(way, "default"))
		found = dlsym(RTLD_DEFAULT, newest);
	else if (!strcmp(way, "next"))
		found = dlsym(RTLD_NEXT, newest);
	else if (!strcmp(way, "library")) /* another library's look-up, by the look-up that it finds next */
		found = ((void *(*)(void *, const char *))dlsym(dlopen(getenv("LOOKS_UP"), RTLD_NOW), "look_up"))(cuda, newest);
	else if (!strcmp(way, "null"))
		found = dlsym(dlopen(NULL, RTLD_NOW), newest);
#ifdef __GLIBC__
	else if (!strcmp(way, "dlvsym"))
		found = dlvsym(cuda, newest, "ANY_1.0") ?: dlsym(cuda, newest);
#endif
	else
		found = by_proc_address(name);
	if (!found) {
		printf("%s is not to be had by %s\n", name, way);
		exit(3);
	}
	return found;
}

#define GET(type, name) ((CUresult(*) type)get(#name))
#define DO(call)                                             \
	do {                                                 \
		CUresult r_ = (call);                        \
		if (r_) {                                    \
			printf("%s gave %d\n", #call, r_);   \
			exit(1);                             \
		}                                            \
	} while (0)

static void *work(void *unused)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry plain() { ret; }\n";
	CUcontext context;
	CUmodule module;
	CUfunction f;
	CUdeviceptr p;
	(void)unused;
	DO(GET((unsigned), cuInit)(0));
	DO(GET((CUcontext *, CUdevice), cuDevicePrimaryCtxRetain)(&context, 0));
	DO(GET((CUcontext), cuCtxSetCurrent)(context));
	CUresult (*take)(CUdeviceptr *, size_t) = GET((CUdeviceptr *, size_t), cuMemAlloc);
	DO(take(&p, 60 * MIB));
	CUresult r = take(&p, 8 * MIB);
	DO(GET((CUmodule *, const void *), cuModuleLoadData)(&module, ptx));
	DO(GET((CUfunction *, CUmodule, const char *), cuModuleGetFunction)(&f, module, "plain"));
	for (int i = 0; i < 7; i++)
		DO(GET((CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
			void **), cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
	DO(GET((void), cuCtxSynchronize)());
	puts(r == CUDA_ERROR_OUT_OF_MEMORY ? "refused" : r ? "another error" : "over the quota");
	return NULL;
}

int main(int argc, char **argv)
{
	bool thread = argc > 2 && !strcmp(argv[1], "thread");
	way = argv[argc - 1];
	if (!(cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)))
		return 2;
	if (thread) {
		pthread_t id;
		pthread_create(&id, NULL, work, NULL);
		pthread_join(id, NULL);
	} else {
		work(NULL);
	}
	fflush(stdout);
	getchar(); /* lives, so that its books can be read, until stdin is closed */
	return 0;
}
