/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches as in CUDA 2: the function is told its block and its parameters by calls of their own first.
 */
#include <string.h>

#include "sim.h"

SIM_EXPORT CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z)
{
	SIM_ENTER(cuFuncSetBlockShape);
	SIM_TRY(sim_function(f, &f));
	if (x <= 0 || y <= 0 || z <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	f->old_block[0] = (unsigned)x;
	f->old_block[1] = (unsigned)y;
	f->old_block[2] = (unsigned)z;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncSetSharedSize(CUfunction f, unsigned int bytes)
{
	SIM_ENTER(cuFuncSetSharedSize);
	(void)bytes;
	return sim_function(f, &f);
}

static CUresult set(CUfunction f, int offset, const void *from, size_t bytes)
{
	SIM_TRY(sim_function(f, &f));
	if (offset < 0 || (size_t)offset + bytes > sizeof(f->old_params))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(f->old_params + offset, from, bytes);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuParamSetSize(CUfunction f, unsigned int bytes)
{
	SIM_ENTER(cuParamSetSize);
	SIM_TRY(sim_function(f, &f));
	return bytes <= sizeof(f->old_params) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuParamSeti(CUfunction f, int offset, unsigned int value)
{
	SIM_ENTER(cuParamSeti);
	return set(f, offset, &value, sizeof(value));
}

SIM_EXPORT CUresult cuParamSetf(CUfunction f, int offset, float value)
{
	SIM_ENTER(cuParamSetf);
	return set(f, offset, &value, sizeof(value));
}

SIM_EXPORT CUresult cuParamSetv(CUfunction f, int offset, void *from, unsigned int bytes)
{
	SIM_ENTER(cuParamSetv);
	return from ? set(f, offset, from, bytes) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult launch(CUfunction f, int width, int height, CUstream stream)
{
	SIM_TRY(sim_function(f, &f));
	if (width <= 0 || height <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	size_t size = sizeof(f->old_params);
	void *extra[] = { (void *)1, f->old_params, (void *)2, &size, NULL };
	unsigned int x = f->old_block[0] ? f->old_block[0] : 1, y = f->old_block[1] ? f->old_block[1] : 1;
	return sim_launch_on(stream, (struct sim_launch){ f, { (unsigned)width, (unsigned)height, 1 },
		{ x, y, f->old_block[2] ? f->old_block[2] : 1 }, 0, NULL, extra });
}

SIM_EXPORT CUresult cuLaunch(CUfunction f)
{
	SIM_ENTER(cuLaunch);
	return launch(f, 1, 1, NULL);
}

SIM_EXPORT CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	SIM_ENTER(cuLaunchGrid);
	return launch(f, width, height, NULL);
}

SIM_EXPORT CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
	SIM_ENTER(cuLaunchGridAsync);
	return launch(f, width, height, stream);
}
