/* SPDX-License-Identifier: Apache-2.0
 *
 * Another preloaded library, as profilers and overlays are: it stands in for cuMemAlloc_v2 and hands on to the next
 * one by RTLD_NEXT.  With HOOK_DLSYM it also takes dlsym over, finding the real one as such libraries do.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN __attribute__((visibility("default")))
static int passed;

OWN int cuMemAlloc_v2(unsigned long long *p, size_t bytes)
{
	int (*next)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
	if (!next) {
		fputs("interposer: no next cuMemAlloc_v2\n", stderr);
		abort();
	}
	passed++;
	return next(p, bytes);
}

OWN int interposer_passed(void) { return passed; }

__attribute__((destructor)) static void say(void)
{
	if (passed && getenv("INTERPOSER_SAYS"))
		fprintf(stderr, "interposer: asked %d times\n", passed);
}

#ifdef HOOK_DLSYM
OWN void *dlsym(void *handle, const char *name)
{
	static void *(*real)(void *, const char *);
	if (!real)
		real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", REAL_DLSYM_VERSION);
	if (!strcmp(name, "interposed_name"))
		return (void *)interposer_passed;
	return real(handle, name);
}
#endif
