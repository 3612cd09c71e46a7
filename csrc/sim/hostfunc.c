/* SPDX-License-Identifier: Apache-2.0
 *
 * Host functions in a stream.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "sim.h"

static CUresult launch(CUstream handle, sim_host_fn fn, void *user)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(sim_implicit(stream));
	if (stream->capture)
		return sim_capture_host(stream, fn, user);
	return sim_submit_host(stream, NULL, fn, user);
}

SIM_EXPORT CUresult cuLaunchHostFunc(CUstream stream, sim_host_fn fn, void *user)
{
	SIM_ENTER(cuLaunchHostFunc);
	return launch(stream, fn, user);
}

SIM_EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream stream, sim_host_fn fn, void *user)
{
	return cuLaunchHostFunc(SIM_PTSZ(stream), fn, user);
}

SIM_EXPORT CUresult cuLaunchHostFunc_v2(CUstream stream, sim_host_fn fn, void *user, unsigned int mode)
{
	(void)mode;
	return cuLaunchHostFunc(stream, fn, user);
}

SIM_EXPORT CUresult cuLaunchHostFunc_v2_ptsz(CUstream stream, sim_host_fn fn, void *user, unsigned int mode)
{
	(void)mode;
	return cuLaunchHostFunc(SIM_PTSZ(stream), fn, user);
}

struct callback {
	CUstream stream;
	sim_stream_callback call;
	void *user;
};

static void run_callback(void *object)
{
	struct callback *c = object;

	c->call(c->stream, CUDA_SUCCESS, c->user);
	free(c);
}

SIM_EXPORT CUresult cuStreamAddCallback(CUstream handle, sim_stream_callback call, void *user, unsigned int flags)
{
	SIM_ENTER(cuStreamAddCallback);
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!call || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->capture) {
		sim_capture_stream_invalid(stream);
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	struct callback *c = malloc(sizeof(*c));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*c = (struct callback){ handle, call, user };
	return sim_submit_host(stream, NULL, run_callback, c);
}

SIM_EXPORT CUresult cuStreamAddCallback_ptsz(CUstream stream, sim_stream_callback call, void *user, unsigned int flags)
{
	return cuStreamAddCallback(SIM_PTSZ(stream), call, user, flags);
}
