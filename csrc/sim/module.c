/* SPDX-License-Identifier: Apache-2.0
 *
 * Code: modules, libraries, functions, kernels.  Of PTX text only the entry points and the sizes of their
 * parameters are read.  Of binary images (cubin, fatbin) nothing can be read, so they have every function
 * one asks for.  A module costs device memory when loaded, a function when first used (lazy loading).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"

static uint64_t fixed_duration(const char *name)
{
	char variable[256];

	if (snprintf(variable, sizeof(variable), "GPULIMIT_SIM_KERNEL_NS_%s", name) >= (int)sizeof(variable))
		return UINT64_MAX;
	const char *text = getenv(variable);
	return text ? strtoull(text, NULL, 10) : UINT64_MAX;
}

static unsigned int type_size(const char *type)
{
	const char *digits = type + strcspn(type, "0123456789");

	return !strncmp(type, "pred", 4) ? 1 : (unsigned int)strtoul(digits, NULL, 10) / 8;
}

/* Read ".param .u64 name, .param .b8 name[16]" up to the closing bracket. */
static void read_params(CUfunction f, const char *at, const char *end)
{
	unsigned int offset = 0;

	while ((at = strstr(at, ".param")) && at < end && f->nparams < 64) {
		const char *stop = strpbrk(at, ",)");
		unsigned int align = 0, size = 0, count = 1;
		const char *word = at + 6;
		if (!stop || stop > end)
			stop = end;
		while ((word = strchr(word, '.')) && word < stop) {
			word++;
			if (!strncmp(word, "align", 5))
				align = (unsigned int)strtoul(word + 5, NULL, 10);
			else if (!size)
				size = type_size(word);
		}
		const char *array = strchr(at, '[');
		if (array && array < stop)
			count = (unsigned int)strtoul(array + 1, NULL, 10);
		if (align < size)
			align = size ? size : 1;
		offset = (offset + align - 1) / align * align;
		f->param_offset[f->nparams] = (uint16_t)offset;
		f->param_size[f->nparams++] = (uint16_t)(size * count);
		offset += size * count;
		at = stop;
	}
}

/* Of unloaded modules, the last one first: a driver may give a handle out again, so this one does whenever it can. */
static CUfunction unloaded;

static CUfunction new_handle(void)
{
	CUfunction f = unloaded;

	if (!f)
		return calloc(1, sizeof(*f));
	unloaded = f->next;
	memset(f, 0, sizeof(*f));
	return f;
}

static void drop_handle(CUfunction f)
{
	free(f->name);
	f->next = unloaded;
	unloaded = f;
}

static CUfunction new_function(CUmodule module, const char *name, size_t length, bool listed)
{
	CUfunction f = new_handle();

	if (!f || !(f->name = strndup(name, length)) || !sim_handle_add(f, SIM_FUNC)) {
		if (f)
			drop_handle(f);
		return NULL;
	}
	f->ctx = module->ctx;
	f->module = module;
	f->fixed_ns = fixed_duration(f->name);
	f->attributes[0] = 1024; /* most threads per block */
	f->attributes[4] = 32;   /* registers */
	if (listed && module->nfunctions < SIM_MODULE_FUNCTIONS)
		module->functions[module->nfunctions++] = f;
	return f;
}

static void read_ptx(CUmodule module, const char *text)
{
	for (const char *at = text; (at = strstr(at, ".entry"));) {
		at += 6;
		at += strspn(at, " \t\r\n");
		size_t n = strcspn(at, " \t\r\n({");
		CUfunction f = n ? new_function(module, at, n, true) : NULL;
		const char *open = at + n + strspn(at + n, " \t\r\n");
		const char *close = *open == '(' ? strchr(open, ')') : NULL;
		if (f && close)
			read_params(f, open, close + 1);
	}
}

static bool is_binary(const unsigned char *image)
{
	static const unsigned char elf[] = { 0x7f, 'E', 'L', 'F' }, fatbin[] = { 0x50, 0xed, 0x55, 0xba };
	static const unsigned char wrapper[] = { 0xb1, 0x43, 0x62, 0x46 };

	return !memcmp(image, elf, 4) || !memcmp(image, fatbin, 4) || !memcmp(image, wrapper, 4);
}

static bool is_text(const char *image)
{
	return strnlen(image, 4) == 4 && strstr(image, ".version");
}

CUresult sim_module_load(CUmodule *out, const void *image)
{
	SIM_CURRENT(ctx);
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	bool binary = is_binary(image);
	if (!binary && !is_text(image))
		return CUDA_ERROR_INVALID_IMAGE;
	SIM_TRY(sim_charge(ctx->gpu, sim_model_of(ctx->gpu)->module_bytes));
	CUmodule module = calloc(1, sizeof(*module));
	if (!module || !sim_handle_add(module, SIM_MODULE)) {
		free(module);
		sim_uncharge(ctx->gpu, sim_model_of(ctx->gpu)->module_bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	module->ctx = ctx;
	module->any_name = binary;
	if (!binary)
		read_ptx(module, image);
	*out = module;
	return CUDA_SUCCESS;
}

char *sim_read_image(const char *path)
{
	FILE *file = path ? fopen(path, "rbe") : NULL;
	size_t size = 0, capacity = 1 << 16;
	char *text = file ? malloc(capacity + 1) : NULL;

	while (text) {
		size += fread(text + size, 1, capacity - size, file);
		if (size < capacity)
			break;
		char *bigger = realloc(text, capacity * 2 + 1);
		if (!bigger) {
			free(text);
			text = NULL;
			break;
		}
		text = bigger;
		capacity *= 2;
	}
	if (text)
		text[size] = 0;
	if (file)
		fclose(file);
	return text;
}

static CUresult load_path(CUmodule *module, const char *path)
{
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	char *image = sim_read_image(path);
	if (!image)
		return SIM_ERROR_FILE_NOT_FOUND;
	CUresult result = sim_module_load(module, image);
	free(image);
	return result;
}

SIM_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	SIM_ENTER(cuModuleLoad);
	return load_path(module, path);
}

SIM_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	SIM_ENTER(cuModuleLoadData);
	return sim_module_load(module, image);
}

SIM_EXPORT CUresult cuModuleLoadDataEx(
	CUmodule *module, const void *image, unsigned int nopts, CUjit_option *options, void **values)
{
	SIM_ENTER(cuModuleLoadDataEx);
	(void)nopts;
	(void)options;
	(void)values;
	return sim_module_load(module, image);
}

SIM_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	SIM_ENTER(cuModuleLoadFatBinary);
	return sim_module_load(module, image);
}

void sim_module_unload(CUmodule module)
{
	CUcontext ctx = module->ctx;

	for (unsigned int i = 0; i < module->nfunctions; i++) {
		CUfunction f = module->functions[i];
		if (f->loaded)
			sim_uncharge(ctx->gpu, sim_model_of(ctx->gpu)->lazy_bytes);
		sim_handle_drop(f);
		drop_handle(f);
	}
	sim_handle_drop(module);
	free(module);
	sim_uncharge(ctx->gpu, sim_model_of(ctx->gpu)->module_bytes);
}

SIM_EXPORT CUresult cuModuleUnload(CUmodule module)
{
	SIM_ENTER(cuModuleUnload);
	if (!sim_handle_is(module, SIM_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	sim_wait_context(module->ctx);
	if (sim_handle_is(module, SIM_MODULE))
		sim_module_unload(module);
	return CUDA_SUCCESS;
}

CUresult sim_module_function(CUmodule module, const char *name, CUfunction *out)
{
	for (unsigned int i = 0; i < module->nfunctions; i++) {
		if (strcmp(module->functions[i]->name, name))
			continue;
		*out = module->functions[i];
		return CUDA_SUCCESS;
	}
	if (!module->any_name)
		return CUDA_ERROR_NOT_FOUND;
	*out = new_function(module, name, strlen(name), true);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
	SIM_ENTER(cuModuleGetFunction);
	if (!f || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(module, SIM_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	return sim_module_function(module, name, f);
}

SIM_EXPORT CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
	SIM_ENTER(cuModuleGetFunctionCount);
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(module, SIM_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	*count = module->nfunctions;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned int count, CUmodule module)
{
	SIM_ENTER(cuModuleEnumerateFunctions);
	if (!out || !count)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(module, SIM_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	for (unsigned int i = 0; i < count && i < module->nfunctions; i++)
		out[i] = module->functions[i];
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule module, const char *name)
{
	SIM_ENTER(cuModuleGetGlobal_v2);
	(void)dptr;
	(void)bytes;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_is(module, SIM_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	return CUDA_ERROR_NOT_FOUND;
}

SIM_EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
	SIM_ENTER(cuModuleGetLoadingMode);
	const char *text = getenv("CUDA_MODULE_LOADING");

	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = text && !strcmp(text, "EAGER") ? 1 : 2;
	return CUDA_SUCCESS;
}
