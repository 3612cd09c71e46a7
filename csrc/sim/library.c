/* SPDX-License-Identifier: Apache-2.0
 *
 * Libraries and kernels: code that is not tied to a context.  Each context that uses a library gets a
 * module of it, on first use, and pays for it then.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "module.h"

struct CUlib_st {
	char *image;
	size_t size;
	CUmodule modules[SIM_MAX_GPUS]; /* by device: of the context that was current */
	CUcontext contexts[SIM_MAX_GPUS];
	uint64_t context_ids[SIM_MAX_GPUS];
	struct CUkern_st *kernels;
};
struct CUkern_st {
	CUlibrary library;
	struct CUkern_st *next;
	char name[];
};

/* A binary image has no length of its own; its head tells that it is one. */
static bool keep_image(CUlibrary library, const void *code)
{
	const unsigned char *head = code;

	library->size = head[0] >= ' ' && head[0] < 0x7f && head[0] != 'P' && head[0] != 'F' ? strlen(code) : 16;
	library->image = calloc(1, library->size + 1);
	if (library->image)
		memcpy(library->image, code, library->size);
	return library->image;
}

static CUresult load(CUlibrary *out, const void *code)
{
	SIM_CURRENT(ctx);
	(void)ctx;
	if (!out || !code)
		return CUDA_ERROR_INVALID_VALUE;
	CUlibrary library = calloc(1, sizeof(*library));
	if (!library || !keep_image(library, code) || !sim_handle_add(library, SIM_LIBRARY)) {
		free(library);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = library;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
	unsigned int njit, CUlibraryOption *opts, void **values, unsigned int nopts)
{
	SIM_ENTER(cuLibraryLoadData);
	(void)jit, (void)jit_values, (void)njit, (void)opts, (void)values, (void)nopts;
	return load(library, code);
}

SIM_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
	unsigned int njit, CUlibraryOption *opts, void **values, unsigned int nopts)
{
	SIM_ENTER(cuLibraryLoadFromFile);
	(void)jit, (void)jit_values, (void)njit, (void)opts, (void)values, (void)nopts;
	char *image = sim_read_image(path);

	if (!image)
		return path ? SIM_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
	CUresult result = load(library, image);
	free(image);
	return result;
}

SIM_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	SIM_ENTER(cuLibraryUnload);
	if (!sim_handle_is(library, SIM_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	sim_handle_drop(library);
	for (int i = 0; i < SIM_MAX_GPUS; i++)
		if (sim_handle_is(library->modules[i], SIM_MODULE))
			sim_module_unload(library->modules[i]);
	for (struct CUkern_st *k = library->kernels, *next; k; k = next) {
		next = k->next;
		sim_handle_drop(k);
		free(k);
	}
	free(library->image);
	free(library);
	return CUDA_SUCCESS;
}

static CUresult module_here(CUlibrary library, CUmodule *out)
{
	SIM_CURRENT(ctx);
	int at = ctx->device;

	if (library->contexts[at] != ctx || library->context_ids[at] != ctx->id || !sim_handle_is(library->modules[at], SIM_MODULE)) {
		SIM_TRY(sim_module_load(&library->modules[at], library->image));
		library->contexts[at] = ctx;
		library->context_ids[at] = ctx->id;
	}
	*out = library->modules[at];
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	SIM_ENTER(cuLibraryGetModule);
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(library, SIM_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	return module_here(library, module);
}

SIM_EXPORT CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name)
{
	SIM_ENTER(cuLibraryGetKernel);
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(library, SIM_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	for (struct CUkern_st *k = library->kernels; k; k = k->next) {
		if (!strcmp(k->name, name)) {
			*out = k;
			return CUDA_SUCCESS;
		}
	}
	bool text = library->size > 16, known = !text;
	for (const char *at = text ? library->image : NULL; at && (at = strstr(at, name)) && !known; at += strlen(name))
		known = !strchr("_$abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", at[strlen(name)]);
	struct CUkern_st *k = known ? calloc(1, sizeof(*k) + strlen(name) + 1) : NULL;
	if (!k)
		return known ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_FOUND;
	k->library = library;
	strcpy(k->name, name);
	k->next = library->kernels;
	library->kernels = k;
	sim_handle_add(k, SIM_KERNEL);
	*out = k;
	return CUDA_SUCCESS;
}

CUresult sim_kernel_function(CUkernel kernel, CUfunction *out)
{
	CUmodule module;

	SIM_TRY(module_here(kernel->library, &module));
	return sim_module_function(module, kernel->name, out);
}

SIM_EXPORT CUresult cuKernelGetFunction(CUfunction *f, CUkernel kernel)
{
	SIM_ENTER(cuKernelGetFunction);
	if (!f)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(kernel, SIM_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	return sim_kernel_function(kernel, f);
}

SIM_EXPORT CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	SIM_ENTER(cuKernelGetLibrary);
	if (!library)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(kernel, SIM_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	*library = kernel->library;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	SIM_ENTER(cuKernelGetName);
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(kernel, SIM_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	*name = kernel->name;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncGetName(const char **name, CUfunction f)
{
	SIM_ENTER(cuFuncGetName);
	SIM_TRY(sim_function(f, &f));
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = f->name;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction f)
{
	SIM_ENTER(cuFuncGetModule);
	SIM_TRY(sim_function(f, &f));
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	*module = f->module;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size)
{
	SIM_ENTER(cuFuncGetParamInfo);
	SIM_TRY(sim_function(f, &f));
	if (!offset || index >= (size_t)f->nparams)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = f->param_offset[index];
	if (size)
		*size = f->param_size[index];
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f)
{
	SIM_ENTER(cuFuncGetAttribute);
	SIM_TRY(sim_function(f, &f));
	if (!value || attribute < 0 || attribute >= 20)
		return CUDA_ERROR_INVALID_VALUE;
	*value = f->attributes[attribute];
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value)
{
	SIM_ENTER(cuFuncSetAttribute);
	SIM_TRY(sim_function(f, &f));
	if (attribute < 0 || attribute >= 20)
		return CUDA_ERROR_INVALID_VALUE;
	f->attributes[attribute] = value;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncSetCacheConfig(CUfunction f, int config)
{
	SIM_ENTER(cuFuncSetCacheConfig);
	(void)config;
	return sim_function(f, &f);
}

SIM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int block_size, size_t shared_bytes)
{
	SIM_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
	(void)shared_bytes;
	SIM_TRY(sim_function(f, &f));
	if (!blocks || block_size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = block_size > 1024 ? 0 : 2048 / ((block_size + 31) / 32 * 32);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
	int *blocks, CUfunction f, int block_size, size_t shared_bytes, unsigned int flags)
{
	(void)flags;
	return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, block_size, shared_bytes);
}

CUresult sim_function(CUfunction f, CUfunction *out)
{
	if (sim_handle_is(f, SIM_FUNC)) {
		*out = f;
		return CUDA_SUCCESS;
	}
	if (sim_handle_is(f, SIM_KERNEL)) /* the runtime launches kernels without a function */
		return sim_kernel_function((CUkernel)f, out);
	return CUDA_ERROR_INVALID_HANDLE;
}
