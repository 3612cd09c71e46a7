/* SPDX-License-Identifier: Apache-2.0
 *
 * The real driver and NVML: their functions, and the hooks of cuGetProcAddress.  Filled once per library, at the
 * first call that needs it, and never changed; shared by all threads and by forked children.
 */
#include <dlfcn.h>
#include <string.h>

#include "shim.h"

void *gl_real[GL_SYMBOLS];
static uint32_t loaded_cuda, loaded_nvml;
static struct gl_lock load_lock; /* not wiped by fork: the child of a process that forks during a load waits forever, */

static const char *const names[GL_SYMBOLS] = {
#define CU_HOOK(name, class, params, args) [GL_ID_##name] = #name,
#define NVML_HOOK(name, class, params, args) [GL_ID_##name] = #name,
#define CU_CALL(name, params) [GL_ID_##name] = #name,
#define NVML_CALL(name, params) [GL_ID_##name] = #name,
#include "hooks.def"
#undef CU_HOOK
#undef NVML_HOOK
#undef CU_CALL
#undef NVML_CALL
};

static CUresult absent_in_driver(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t absent_in_nvml(void)
{
	return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static bool is_nvml(int id)
{
	return names[id][0] == 'n';
}

int gl_hook_by_name(const char *name)
{
	for (int id = 0; id < GL_HOOKS; id++) {
		const char *a = names[id], *b = name;
		while (*a && *a == *b)
			a++, b++;
		if (*a == *b)
			return id;
	}
	return -1;
}

void *gl_hook_address(int id)
{
	static void *const hooks[GL_HOOKS] = {
#define CU_HOOK(name, class, params, args) [GL_ID_##name] = (void *)name,
#define NVML_HOOK(name, class, params, args) [GL_ID_##name] = (void *)name,
#define CU_CALL(name, params)
#define NVML_CALL(name, params)
#include "hooks.def"
#undef CU_HOOK
#undef NVML_HOOK
#undef CU_CALL
#undef NVML_CALL
	};
	return hooks[id];
}

bool gl_has(enum gl_hook_id id)
{
	return gl_real[id] && gl_real[id] != (void *)absent_in_driver && gl_real[id] != (void *)absent_in_nvml;
}

static void fill(bool nvml, void *handle)
{
	void *(*find)(void *, const char *) = (void *(*)(void *, const char *))gl_elf_libc_symbol("dlsym");
	for (int id = 0; id < GL_SYMBOLS; id++) {
		if (is_nvml(id) != nvml)
			continue;
		void *real = handle && find ? find(handle, names[id]) : NULL;
		/* If a library found our hook under its own handle, it would call itself forever. */
		if (real && id < GL_HOOKS && real == gl_hook_address(id))
			real = NULL;
		gl_store_relaxed(&gl_real[id], real ? real : nvml ? (void *)absent_in_nvml : (void *)absent_in_driver);
	}
}

static bool load(bool nvml, bool only_if_present)
{
	uint32_t *done = nvml ? &loaded_nvml : &loaded_cuda;
	if (gl_load_acquire(done))
		return gl_load_acquire(done) == 1;
	void *(*open)(const char *, int) = (void *(*)(const char *, int))gl_elf_libc_symbol("dlopen");
	const char *library = nvml ? "libnvidia-ml.so.1" : "libcuda.so.1";
	int kept = errno;
	void *handle = open ? open(library, RTLD_LAZY | RTLD_NOLOAD) : NULL;
	if (!handle && open && !only_if_present)
		handle = open(library, RTLD_LAZY);
	errno = kept;
	if (!handle && (only_if_present || gl_no_descriptors()))
		return false; /* the library may be found later */
	gl_lock(&load_lock);
	if (!gl_load_acquire(done)) {
		fill(nvml, handle);
		gl_store_release(done, handle ? 1u : 2u);
	}
	gl_unlock(&load_lock);
	return gl_load_acquire(done) == 1;
}

bool gl_driver_load(void)
{
	return load(false, false);
}

bool gl_nvml_load(void)
{
	return load(true, false);
}

bool gl_loaded(int id)
{
	return load(is_nvml(id), true);
}

/* The driver has chosen the variant for the version and the flags; if we hook that one, return our hook. */
static void swap_for_hook(void **pointer)
{
	for (int id = 0; id < GL_HOOKS; id++)
		if (gl_real[id] == *pointer && gl_has((enum gl_hook_id)id)) {
			*pointer = gl_hook_address(id);
			return;
		}
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	gl_driver_load();
	CUresult result = REAL(cuGetProcAddress)(symbol, pfn, version, flags);
	if (result == CUDA_SUCCESS && pfn && *pfn)
		swap_for_hook(pfn);
	return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	gl_driver_load();
	CUresult result = REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
	if (result == CUDA_SUCCESS && pfn && *pfn)
		swap_for_hook(pfn);
	return result;
}
