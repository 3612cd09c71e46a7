/* SPDX-License-Identifier: Apache-2.0
 *
 * Interception of calls, by file: dlsym.c gives programs our functions, driver.c has the driver's own.
 */
#ifndef GL_DRIVER_H
#define GL_DRIVER_H

#include <stdbool.h>

#include "abi.h"

#pragma GCC visibility push(hidden)

/* ---- elf.c: looking symbols up without calling libc ---- */

/* True if the text begins with the other.  Calls no libc function. */
static inline bool gl_begins(const char *text, const char *with)
{
	while (*with)
		if (*text++ != *with++)
			return false;
	return true;
}
void *gl_elf_libc_symbol(const char *name);
/* The first object behind the one loaded at `base` that defines the function belongs to a library other than libc and
 * ours. */
bool gl_elf_next_is_foreign(const void *base, const char *name, const void *ours);

/* ---- driver.c: the real functions ---- */

#pragma GCC visibility pop
/* The hooks' prototypes: exported, and the only symbols that are. */
#define CU_HOOK(name, class, params, args) __attribute__((visibility("default"))) CUresult name params;
#define NVML_HOOK(name, class, params, args) __attribute__((visibility("default"))) nvmlReturn_t name params;
#define CU_CALL(name, params)
#define NVML_CALL(name, params)
#include "hooks.def"
#undef CU_HOOK
#undef NVML_HOOK
#undef CU_CALL
#undef NVML_CALL
#pragma GCC visibility push(hidden)

#define CU_CALL(name, params) typedef CUresult gl_type_##name params;
#define NVML_CALL(name, params) typedef nvmlReturn_t gl_type_##name params;
#define CU_HOOK(name, class, params, args) CU_CALL(name, params)
#define NVML_HOOK(name, class, params, args) NVML_CALL(name, params)
#include "hooks.def"
#undef CU_HOOK
#undef NVML_HOOK
#undef CU_CALL
#undef NVML_CALL

/* Ids: hooks first, CUDA before NVML, then the calls, so that id < GL_HOOKS means "taken over". */
enum gl_hook_id {
#define CU_CALL(name, params)
#define NVML_CALL(name, params)
#define CU_HOOK(name, class, params, args) GL_ID_##name,
#define NVML_HOOK(name, class, params, args) GL_ID_##name,
#include "hooks.def"
#undef CU_HOOK
#undef NVML_HOOK
	GL_HOOKS,
	GL_BEFORE_CALLS = GL_HOOKS - 1,
#undef CU_CALL
#undef NVML_CALL
#define CU_HOOK(name, class, params, args)
#define NVML_HOOK(name, class, params, args)
#define CU_CALL(name, params) GL_ID_##name,
#define NVML_CALL(name, params) GL_ID_##name,
#include "hooks.def"
#undef CU_HOOK
#undef NVML_HOOK
#undef CU_CALL
#undef NVML_CALL
	GL_SYMBOLS
};

extern void *gl_real[GL_SYMBOLS];
/* Calls the real function; one that the driver lacks answers CUDA_ERROR_NOT_SUPPORTED (NVML: FUNCTION_NOT_FOUND). */
#define REAL(name) ((gl_type_##name *)gl_real[GL_ID_##name])
bool gl_has(enum gl_hook_id id); /* the driver has it */

/* Finds the real libraries: one already loaded, else loads it.  False: there is none. */
bool gl_driver_load(void);
bool gl_nvml_load(void);
/* True if the library that id belongs to is already in the process and its functions are known.  Does not load it. */
bool gl_loaded(int id);
/* Id of the hook for a symbol name, or -1.  Calls no libc function. */
int gl_hook_by_name(const char *name);
/* Our function for a hook id. */
void *gl_hook_address(int id);

#pragma GCC visibility pop

#endif
