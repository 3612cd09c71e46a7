/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks every function of the hook table up in one way and says where it lies: "NAME OBJECT SYMBOL" or "NAME -" and
 * whether dlerror() had something to say.
 *
 * Usage: walk WAY [NAME...]   (WAY: linked handle default next null dlvsym self)
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define NAME_ONLY(name, class, params, args) #name,
#define CU_HOOK NAME_ONLY
#define NVML_HOOK NAME_ONLY
#define CU_CALL(name, params)
#define NVML_CALL(name, params)
static const char *const names[] = {
#include "hooks.def"
};
enum { COUNT = sizeof names / sizeof *names };
#undef CU_HOOK
#undef NVML_HOOK

#ifdef LINKED
#define DECLARE(name, class, params, args) void name(void);
#define CU_HOOK DECLARE
#define NVML_HOOK DECLARE
#include "hooks.def"
#undef CU_HOOK
#undef NVML_HOOK
#define ADDRESS(name, class, params, args) (void *)name,
#define CU_HOOK ADDRESS
#define NVML_HOOK ADDRESS
static void *const linked[] = {
#include "hooks.def"
};
#endif

static void *find(const char *way, const char *name, int index)
{
	static void *cuda, *nvml;
	void *(*find_by_itself)(void *, const char *);
	(void)index;
	if (!cuda)
		cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!nvml)
		nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	void *handle = name[0] == 'n' ? nvml : cuda;
	dlerror();
#ifdef LINKED
	if (!strcmp(way, "linked"))
		return linked[index];
#endif
	if (!strcmp(way, "handle"))
		return dlsym(handle, name);
	if (!strcmp(way, "default"))
		return dlsym(RTLD_DEFAULT, name);
	if (!strcmp(way, "next"))
		return dlsym(RTLD_NEXT, name);
	if (!strcmp(way, "null"))
		return dlsym(dlopen(NULL, RTLD_NOW), name);
	if (!strcmp(way, "dlvsym"))
		return dlvsym(handle, name, "ANY_1.0");
	/* dlsym asked for by name, as foreign-function interfaces do */
	void *libc = dlopen("libc.so.6", RTLD_NOW);
	*(void **)&find_by_itself = dlsym(libc, "dlsym");
	return find_by_itself ? find_by_itself(handle, name) : NULL;
}

static void show(const char *way, const char *name, int index)
{
	Dl_info info;
	void *found = find(way, name, index);
	const char *error = dlerror();
	if (!found)
		printf("%s - %s\n", name, error ? "error" : "silent");
	else if (dladdr(found, &info) && info.dli_fname)
		printf("%s %s %s\n", name, strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname,
		       info.dli_sname ? info.dli_sname : "?");
	else
		printf("%s nowhere ?\n", name);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	for (int i = 2; i < argc; i++)
		show(argv[1], argv[i], 0);
	for (int i = 0; argc == 2 && i < COUNT; i++)
		show(argv[1], names[i], i);
	return 0;
}
