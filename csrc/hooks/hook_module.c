/* SPDX-License-Identifier: Apache-2.0
 *
 * Code.  A module's code and its global variables take device memory that nobody asks for by size (a variable may be
 * gigabytes), so a load is measured, and undone if it does not fit the quota.  Code that the driver loads later, at
 * first use, is found at the next reservation.
 */
#include "shim.h"

#define OR_UNDO(what, got, out, call, undo)                                       \
	do {                                                                      \
		struct gl_gpu *gpu = (out) ? gl_gpu_current() : NULL;             \
		if (!gpu) {                                                       \
			gl_overhead_mark_all();                                   \
			return REAL(what) call(out);                              \
		}                                                                 \
		uint64_t before = gl_overhead_watch(gpu);                         \
		CUresult result = REAL(what) call(&(got));                        \
		if (result != CUDA_SUCCESS)                                       \
			return result;                                            \
		if (!gl_overhead_fits(gpu, before)) {                             \
			REAL(undo)(got);                                          \
			(void)gl_overhead_measure(gpu);                                  \
			gl_add(&gpu->device->refused, 1);                         \
			return CUDA_ERROR_OUT_OF_MEMORY;                          \
		}                                                                 \
		*(out) = got;                                                     \
		return CUDA_SUCCESS;                                              \
	} while (0)

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	GL_ENTER(cuModuleLoad, (module, path));
	CUmodule got;
#define CALL(out) (out, path)
	OR_UNDO(cuModuleLoad, got, module, CALL, cuModuleUnload);
#undef CALL
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	GL_ENTER(cuModuleLoadData, (module, image));
	CUmodule got;
#define CALL(out) (out, image)
	OR_UNDO(cuModuleLoadData, got, module, CALL, cuModuleUnload);
#undef CALL
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int nopts, CUjit_option *options,
			    void **values)
{
	GL_ENTER(cuModuleLoadDataEx, (module, image, nopts, options, values));
	CUmodule got;
#define CALL(out) (out, image, nopts, options, values)
	OR_UNDO(cuModuleLoadDataEx, got, module, CALL, cuModuleUnload);
#undef CALL
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	GL_ENTER(cuModuleLoadFatBinary, (module, image));
	CUmodule got;
#define CALL(out) (out, image)
	OR_UNDO(cuModuleLoadFatBinary, got, module, CALL, cuModuleUnload);
#undef CALL
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
			   unsigned int njit, CUlibraryOption *opts, void **values, unsigned int nopts)
{
	GL_ENTER(cuLibraryLoadData, (library, code, jit, jit_values, njit, opts, values, nopts));
	CUlibrary got;
#define CALL(out) (out, code, jit, jit_values, njit, opts, values, nopts)
	OR_UNDO(cuLibraryLoadData, got, library, CALL, cuLibraryUnload);
#undef CALL
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
			       unsigned int njit, CUlibraryOption *opts, void **values, unsigned int nopts)
{
	GL_ENTER(cuLibraryLoadFromFile, (library, path, jit, jit_values, njit, opts, values, nopts));
	CUlibrary got;
#define CALL(out) (out, path, jit, jit_values, njit, opts, values, nopts)
	OR_UNDO(cuLibraryLoadFromFile, got, library, CALL, cuLibraryUnload);
#undef CALL
}

/* The rest only tells that there may be something new to measure. */

CUresult cuModuleUnload(CUmodule module)
{
	GL_ENTER(cuModuleUnload, (module));
	CUresult result = REAL(cuModuleUnload)(module);
	gl_overhead_mark(gl_gpu_current());
	return result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	GL_ENTER(cuLibraryUnload, (library));
	CUresult result = REAL(cuLibraryUnload)(library);
	gl_overhead_mark_all();
	return result;
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
	GL_ENTER(cuModuleGetFunction, (f, module, name));
	CUresult result = REAL(cuModuleGetFunction)(f, module, name);
	gl_overhead_mark(gl_gpu_current());
	return result;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	GL_ENTER(cuLibraryGetModule, (module, library));
	CUresult result = REAL(cuLibraryGetModule)(module, library);
	gl_overhead_mark(gl_gpu_current());
	return result;
}

CUresult cuKernelGetFunction(CUfunction *f, CUkernel kernel)
{
	GL_ENTER(cuKernelGetFunction, (f, kernel));
	CUresult result = REAL(cuKernelGetFunction)(f, kernel);
	gl_overhead_mark(gl_gpu_current());
	return result;
}

CUresult cuFuncLoad(CUfunction f)
{
	GL_ENTER(cuFuncLoad, (f));
	CUresult result = REAL(cuFuncLoad)(f);
	gl_overhead_mark(gl_gpu_current());
	return result;
}
