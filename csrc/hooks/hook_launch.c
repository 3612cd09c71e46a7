/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of kernels.  The expected cost of a launch is looked up by function and launch shape.
 */
#include "shim.h"
#include "time/launch.h"
#include "time/types.h"

enum { COOPERATIVE_ATTRIBUTE = 2 };

static uint64_t key_of(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz)
{
	uint64_t h = gl_key_mix((uintptr_t)f, ((uint64_t)gx << 32) | gy);
	return gl_key_mix(h, ((uint64_t)gz << 40) ^ ((uint64_t)bx << 20) ^ ((uint64_t)by << 10) ^ bz);
}

#define LAUNCH(name, args, kind, key, stream, per_thread)                                                    \
	do {                                                                                                 \
		GL_ENTER(name, args);                                                                        \
		struct gl_launch launch;                                                                     \
		CUresult refused = gl_launch_begin(&launch, kind, key, stream, per_thread);                  \
		if (GL_UNLIKELY(refused != CUDA_SUCCESS))                                                    \
			return refused;                                                                      \
		return gl_launch_end(&launch, REAL(name) args);                                              \
	} while (0)

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
			unsigned int bz, unsigned int shared_bytes, CUstream stream, void **params, void **extra)
{
	LAUNCH(cuLaunchKernel, (f, gx, gy, gz, bx, by, bz, shared_bytes, stream, params, extra), GL_KERNEL,
	       key_of(f, gx, gy, gz, bx, by, bz), stream, false);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
			     unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream, void **params,
			     void **extra)
{
	LAUNCH(cuLaunchKernel_ptsz, (f, gx, gy, gz, bx, by, bz, shared_bytes, stream, params, extra), GL_KERNEL,
	       key_of(f, gx, gy, gz, bx, by, bz), stream, true);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
				   unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream,
				   void **params)
{
	LAUNCH(cuLaunchCooperativeKernel, (f, gx, gy, gz, bx, by, bz, shared_bytes, stream, params), GL_COOPERATIVE,
	       key_of(f, gx, gy, gz, bx, by, bz), stream, false);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
					unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream,
					void **params)
{
	LAUNCH(cuLaunchCooperativeKernel_ptsz, (f, gx, gy, gz, bx, by, bz, shared_bytes, stream, params), GL_COOPERATIVE,
	       key_of(f, gx, gy, gz, bx, by, bz), stream, true);
}

static enum gl_launch_kind kind_of(const CUlaunchConfig *c)
{
	for (unsigned i = 0; c->attrs && i < c->numAttrs; i++)
		if (c->attrs[i].id == COOPERATIVE_ATTRIBUTE && c->attrs[i].value.cooperative)
			return GL_COOPERATIVE;
	return GL_KERNEL;
}

static uint64_t key_of_config(const CUlaunchConfig *c, CUfunction f)
{
	return key_of(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (!config)
		return gl_begin() == GL_FAILED ? GL_FAILED_RESULT : REAL(cuLaunchKernelEx)(config, f, params, extra);
	LAUNCH(cuLaunchKernelEx, (config, f, params, extra), kind_of(config), key_of_config(config, f), config->hStream, false);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (!config)
		return gl_begin() == GL_FAILED ? GL_FAILED_RESULT : REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra);
	LAUNCH(cuLaunchKernelEx_ptsz, (config, f, params, extra), kind_of(config), key_of_config(config, f), config->hStream, true);
}

static uint64_t key_of_part(const CUDA_LAUNCH_PARAMS *p)
{
	return key_of(p->function, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ);
}

/* One launch on several devices, each charged for its part; deprecated since CUDA 11.3.  With more devices than a
 * tenant can have, the driver returns an error. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int ndev, unsigned int flags)
{
	GL_ENTER(cuLaunchCooperativeKernelMultiDevice, (list, ndev, flags));
	struct gl_launch part[GL_MAX_DEVICES];
	CUresult result = CUDA_SUCCESS;
	unsigned int begun = 0;
	if (list && ndev > GL_MAX_DEVICES)
		return CUDA_ERROR_INVALID_VALUE;
	for (; list && begun < ndev && result == CUDA_SUCCESS; begun += result == CUDA_SUCCESS)
		result = gl_launch_begin(&part[begun], GL_COOPERATIVE, key_of_part(&list[begun]), list[begun].hStream, false);
	if (result == CUDA_SUCCESS)
		result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, ndev, flags);
	while (begun)
		(void)gl_launch_end(&part[--begun], result);
	return result;
}

/* The calls of CUDA 2: the block shape is set beforehand and unknown here. */
CUresult cuLaunch(CUfunction f)
{
	LAUNCH(cuLaunch, (f), GL_KERNEL, key_of(f, 1, 1, 1, 0, 0, 0), NULL, false);
}

CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	LAUNCH(cuLaunchGrid, (f, width, height), GL_KERNEL, key_of(f, (unsigned)width, (unsigned)height, 1, 0, 0, 0), NULL, false);
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
	LAUNCH(cuLaunchGridAsync, (f, width, height, stream), GL_KERNEL,
	       key_of(f, (unsigned)width, (unsigned)height, 1, 0, 0, 0), stream, false);
}
