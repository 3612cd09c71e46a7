/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel launches of every kind.  How long a kernel takes: GPULIMIT_SIM_KERNEL_NS_<NAME> if set; the time
 * asked for if it is a spinning kernel (`spin_ns`, `gpulimit_spin`); the bytes over the card's bandwidth
 * for `gpulimit_touch` and `copy_bytes`; until its flag has come for `gpulimit_await`, and until all ranks
 * have, and then the time asked for, for `gpulimit_barrier`; else the profile's time per kernel plus its time per block.
 *
 * A function runs in its own context, and the stream must be of that; a kernel runs in the stream's context.
 */
#include <string.h>

#include "sim.h"

/* The value of a 64-bit parameter, from kernelParams or from the packed buffer of `extra`. */
static uint64_t parameter(const struct sim_launch *l, int index)
{
	uint64_t value = 0;
	const char *buffer = NULL;

	if (l->params) {
		if (index < l->func->nparams && l->params[index])
			memcpy(&value, l->params[index], l->func->param_size[index] < 8 ? l->func->param_size[index] : 8);
		return value;
	}
	for (void **e = l->extra; e && *e; e += 2) /* 1: buffer pointer, 2: buffer size */
		if (*e == (void *)1)
			buffer = e[1];
	if (buffer && index < l->func->nparams)
		memcpy(&value, buffer + l->func->param_offset[index], 8);
	return value;
}

uint64_t sim_kernel_cost(const struct sim_launch *l)
{
	const struct sim_model *m = sim_model_of(l->func->ctx->gpu);
	const char *name = l->func->name;

	if (l->func->fixed_ns != UINT64_MAX)
		return l->func->fixed_ns;
	if (!strcmp(name, "gpulimit_spin") || !strcmp(name, "spin_ns"))
		return parameter(l, 0);
	if (!strcmp(name, "gpulimit_touch") || !strcmp(name, "copy_bytes"))
		return parameter(l, 1) * 1000 / m->memory_bytes_per_us + 1000;
	return m->kernel_ns + m->kernel_ns_per_block * l->grid[0] * l->grid[1] * l->grid[2];
}

/* What the kernel does to memory: the built-in workload counts its launches at `out`. */
void sim_kernel_effect(const struct sim_launch *l)
{
	if (!strcmp(l->func->name, "gpulimit_spin") && l->func->nparams > 1) {
		uint64_t out = parameter(l, 1);
		if (out && sim_range_ok(out, 8))
			__atomic_fetch_add((uint64_t *)(uintptr_t)out, 1, __ATOMIC_RELAXED);
	} else if (!strcmp(l->func->name, "gpulimit_touch")) {
		sim_touch_managed(parameter(l, 0), parameter(l, 1));
	}
}

/* gpulimit_barrier, gpulimit_await and gpulimit_set wait for and set flags; see limiter/workload/waiting.py. */
bool sim_kernel_waits(const struct sim_launch *l, struct sim_work *work)
{
	const char *name = l->func->name;
	struct sim_item item = { .cost_ns = sim_model_of(l->func->ctx->gpu)->kernel_ns, .mask = UINT64_MAX, .how = SIM_REACHED };

	if (l->func->nparams < 2 || strncmp(name, "gpulimit_", 9))
		return false;
	item.value = parameter(l, 1);
	*work = (struct sim_work){ .word = parameter(l, 0) };
	if (!strcmp(name, "gpulimit_barrier")) {
		item.op = SIM_RENDEZVOUS;
		item.cost_ns = parameter(l, 2);
	} else if (!strcmp(name, "gpulimit_await")) {
		item.op = SIM_AWAIT;
		item.limit_ns = parameter(l, 2);
		work->bails = parameter(l, 3);
	} else if (!strcmp(name, "gpulimit_set")) {
		item.op = SIM_SET;
	} else {
		return false;
	}
	work->item = item;
	return sim_range_ok(work->word, 8) && work->word % 8 == 0;
}

static bool shape_ok(const struct sim_launch *l)
{
	uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];

	return l->grid[0] && l->grid[1] && l->grid[2] && threads && threads <= 1024;
}

static CUresult load(CUfunction f)
{
	if (f->loaded)
		return CUDA_SUCCESS;
	SIM_TRY(sim_charge(f->ctx->gpu, sim_model_of(f->ctx->gpu)->lazy_bytes));
	f->loaded = true;
	return CUDA_SUCCESS;
}

CUresult sim_run_kernel(CUstream stream, const struct sim_launch *given)
{
	struct sim_launch launch = *given;

	SIM_TRY(sim_function_in(stream->ctx, given->func, &launch.func));
	if (!shape_ok(&launch))
		return CUDA_ERROR_INVALID_VALUE;
	if (launch.func->nparams && !launch.params && !launch.extra)
		return CUDA_ERROR_INVALID_VALUE;
	if (launch.func->ctx != stream->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_TRY(load(launch.func));
	SIM_TRY(sim_implicit(stream));
	if (stream->capture)
		return sim_capture_kernel(stream, &launch);
	struct sim_work work;
	if (sim_kernel_waits(&launch, &work))
		return sim_submit_work(stream, &work);
	uint64_t cost = sim_kernel_cost(&launch);
	sim_kernel_effect(&launch);
	return sim_submit(stream, cost, NULL);
}

CUresult sim_launch_on(CUstream handle, struct sim_launch launch)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	return sim_run_kernel(stream, &launch);
}

SIM_EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
	unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream, void **params, void **extra)
{
	SIM_ENTER(cuLaunchKernel);
	if (params && extra)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_launch_on(stream, (struct sim_launch){ f, { gx, gy, gz }, { bx, by, bz }, shared_bytes, params, extra });
}

SIM_EXPORT CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
	unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream, void **params, void **extra)
{
	return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared_bytes, SIM_PTSZ(stream), params, extra);
}

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction f, CUstream stream, void **params, void **extra)
{
	return sim_launch_on(stream, (struct sim_launch){ f, { c->gridDimX, c->gridDimY, c->gridDimZ },
		{ c->blockDimX, c->blockDimY, c->blockDimZ }, c->sharedMemBytes, params, extra });
}

SIM_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	SIM_ENTER(cuLaunchKernelEx);
	if (!config || (params && extra))
		return CUDA_ERROR_INVALID_VALUE;
	return launch_ex(config, f, config->hStream, params, extra);
}

SIM_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	SIM_ENTER(cuLaunchKernelEx_ptsz);
	if (!config || (params && extra))
		return CUDA_ERROR_INVALID_VALUE;
	return launch_ex(config, f, SIM_PTSZ(config->hStream), params, extra);
}

SIM_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
	unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream, void **params)
{
	SIM_ENTER(cuLaunchCooperativeKernel);
	return sim_launch_on(stream, (struct sim_launch){ f, { gx, gy, gz }, { bx, by, bz }, shared_bytes, params, NULL });
}

SIM_EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
	unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream, void **params)
{
	return cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared_bytes, SIM_PTSZ(stream), params);
}

SIM_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int ndev, unsigned int flags)
{
	SIM_ENTER(cuLaunchCooperativeKernelMultiDevice);
	(void)flags;
	if (!list || !ndev)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < ndev; i++) {
		const CUDA_LAUNCH_PARAMS *p = &list[i];
		SIM_TRY(sim_launch_on(p->hStream, (struct sim_launch){ p->function, { p->gridDimX, p->gridDimY, p->gridDimZ },
			{ p->blockDimX, p->blockDimY, p->blockDimZ }, p->sharedMemBytes, p->kernelParams, NULL }));
	}
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncLoad(CUfunction f)
{
	SIM_ENTER(cuFuncLoad);
	SIM_TRY(sim_function(f, &f));
	return load(f);
}

SIM_EXPORT CUresult cuFuncIsLoaded(int *state, CUfunction f)
{
	SIM_ENTER(cuFuncIsLoaded);
	SIM_TRY(sim_function(f, &f));
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	*state = f->loaded;
	return CUDA_SUCCESS;
}
