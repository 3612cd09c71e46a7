/* SPDX-License-Identifier: Apache-2.0
 *
 * Code.  A module's code and its global variables use device memory without a call that names the size, and a variable may
 * be gigabytes.  So each load is measured, and undone if it exceeds the quota.  The next reservation finds code that the
 * driver loads later, at first use.
 */
#include "process/gang.h"
#include "shim.h"
#include "time/types.h"

/* A call that loads code: `params` and `args` follow the handle. */
#define LOADING(name, handle, undo, params, args)                                                                      \
	CUresult name(handle *out, GL_REST params)                                                                     \
	{                                                                                                              \
		GL_ENTER(name, (out, GL_REST args));                                                                   \
		struct gl_gpu *gpu = out ? gl_gpu_current() : NULL;                                                    \
		if (!gpu) {                                                                                            \
			gl_overhead_mark_all();                                                                        \
			return REAL(name)(out, GL_REST args);                                                          \
		}                                                                                                      \
		handle got;                                                                                            \
		uint64_t before = gl_overhead_watch(gpu);                                                              \
		CUresult result = REAL(name)(&got, GL_REST args);                                                      \
		if (result != CUDA_SUCCESS)                                                                            \
			return result;                                                                                 \
		if (!gl_overhead_fits(gpu, before)) {                                                                  \
			REAL(undo)(got);                                                                               \
			(void)gl_overhead_measure(gpu);                                                                \
			gl_add_relaxed(&gpu->device->refused, 1);                                                      \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		}                                                                                                      \
		*out = got;                                                                                            \
		return CUDA_SUCCESS;                                                                                   \
	}

LOADING(cuModuleLoad, CUmodule, cuModuleUnload, (const char *path), (path))
LOADING(cuModuleLoadData, CUmodule, cuModuleUnload, (const void *image), (image))
LOADING(cuModuleLoadDataEx, CUmodule, cuModuleUnload,
	(const void *image, unsigned int nopts, CUjit_option *options, void **values), (image, nopts, options, values))
LOADING(cuModuleLoadFatBinary, CUmodule, cuModuleUnload, (const void *image), (image))
LOADING(cuLibraryLoadData, CUlibrary, cuLibraryUnload,
	(const void *code, CUjit_option *jit, void **jit_values, unsigned int njit, CUlibraryOption *opts, void **values,
	 unsigned int nopts),
	(code, jit, jit_values, njit, opts, values, nopts))
LOADING(cuLibraryLoadFromFile, CUlibrary, cuLibraryUnload,
	(const char *path, CUjit_option *jit, void **jit_values, unsigned int njit, CUlibraryOption *opts, void **values,
	 unsigned int nopts),
	(path, jit, jit_values, njit, opts, values, nopts))

/* The driver may now reuse a function's handle for another function.  That function must not inherit the old cost,
 * neither from the table nor from marks that have been reached.  The table does not tell which costs belong to this
 * code, so all are dropped. */
static CUresult unloaded(CUresult result)
{
	struct gl_meter *m = gl_load_acquire(&gl_self.meter);
	if (!m || result != CUDA_SUCCESS)
		return result;
	gl_marks_collect_all(m, NULL);
	gl_costs_forget();
	return result;
}

CUresult cuModuleUnload(CUmodule module)
{
	GL_ENTER(cuModuleUnload, (module));
	CUresult result = unloaded(REAL(cuModuleUnload)(module));
	gl_overhead_mark(gl_gpu_current());
	return result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	GL_ENTER(cuLibraryUnload, (library));
	CUresult result = unloaded(REAL(cuLibraryUnload)(library));
	gl_overhead_mark_all();
	return result;
}

/* A call that may load code as a side effect: the overhead must be measured again. */
#define LOOKING_UP(name, params, args)                                                                                 \
	CUresult name params                                                                                           \
	{                                                                                                              \
		GL_ENTER(name, args);                                                                                  \
		CUresult result = REAL(name) args;                                                                     \
		gl_overhead_mark(gl_gpu_current());                                                                    \
		return result;                                                                                         \
	}

/* The same for a function by its name, which may show that it belongs to a collective. */
#define LOOKING_UP_NAME(call, params, args)                                                                            \
	CUresult call params                                                                                           \
	{                                                                                                              \
		GL_ENTER(call, args);                                                                                  \
		CUresult result = REAL(call) args;                                                                     \
		struct gl_gpu *gpu = gl_gpu_current();                                                                 \
		gl_overhead_mark(gpu);                                                                                 \
		if (result == CUDA_SUCCESS)                                                                            \
			gl_gang_note_function(gpu, name);                                                              \
		return result;                                                                                         \
	}

LOOKING_UP_NAME(cuModuleGetFunction, (CUfunction *f, CUmodule module, const char *name), (f, module, name))
LOOKING_UP_NAME(cuLibraryGetKernel, (CUkernel *kernel, CUlibrary library, const char *name), (kernel, library, name))
LOOKING_UP(cuLibraryGetModule, (CUmodule *module, CUlibrary library), (module, library))
LOOKING_UP(cuKernelGetFunction, (CUfunction *f, CUkernel kernel), (f, kernel))
LOOKING_UP(cuFuncLoad, (CUfunction f), (f))
