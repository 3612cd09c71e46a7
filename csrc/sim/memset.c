/* SPDX-License-Identifier: Apache-2.0
 *
 * The fill calls.  The ones without a stream use the legacy stream and do not wait for the card.
 */
#include "sim.h"

static CUresult run(CUstream handle, sim_memset_params set)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	SIM_TRY(sim_memset_check(&set));
	if (!set.width || !set.height)
		return CUDA_SUCCESS;
	SIM_TRY(sim_implicit(stream));
	if (stream->capture)
		return sim_capture_memset(stream, &set);
	return sim_memset_submit(stream, &set);
}

/* Every width of element comes as: the 32-bit call of CUDA 2, today's call and its twin for the
 * per-thread stream, and the call with a stream and its twin; each in one and in two dimensions. */
#define FILLS(bits, type)                                                                                        \
	SIM_EXPORT CUresult cuMemsetD##bits(CUdeviceptr_v1 dst, type value, unsigned int n)                      \
	{                                                                                                        \
		SIM_ENTER(cuMemsetD##bits);                                                                      \
		return run(NULL, (sim_memset_params){ dst, 0, value, bits / 8, n, 1 });                    \
	}                                                                                                        \
	SIM_EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t n)                          \
	{                                                                                                        \
		SIM_ENTER(cuMemsetD##bits##_v2);                                                                 \
		return run(NULL, (sim_memset_params){ dst, 0, value, bits / 8, n, 1 });                    \
	}                                                                                                        \
	SIM_EXPORT CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr dst, type value, size_t n)                     \
	{                                                                                                        \
		SIM_ENTER(cuMemsetD##bits##_v2_ptds);                                                            \
		return run(CU_STREAM_PER_THREAD, (sim_memset_params){ dst, 0, value, bits / 8, n, 1 });    \
	}                                                                                                        \
	SIM_EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t n, CUstream stream)       \
	{                                                                                                        \
		SIM_ENTER(cuMemsetD##bits##Async);                                                               \
		return run(stream, (sim_memset_params){ dst, 0, value, bits / 8, n, 1 });                  \
	}                                                                                                        \
	SIM_EXPORT CUresult cuMemsetD##bits##Async_ptsz(CUdeviceptr dst, type value, size_t n, CUstream stream)  \
	{                                                                                                        \
		return cuMemsetD##bits##Async(dst, value, n, SIM_PTSZ(stream));                                  \
	}                                                                                                        \
	SIM_EXPORT CUresult cuMemsetD2D##bits(                                                                   \
		CUdeviceptr_v1 dst, unsigned int pitch, type value, unsigned int width, unsigned int height)     \
	{                                                                                                        \
		SIM_ENTER(cuMemsetD2D##bits);                                                                    \
		return run(NULL, (sim_memset_params){ dst, pitch, value, bits / 8, width, height });       \
	}                                                                                                        \
	SIM_EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height) \
	{                                                                                                        \
		SIM_ENTER(cuMemsetD2D##bits##_v2);                                                               \
		return run(NULL, (sim_memset_params){ dst, pitch, value, bits / 8, width, height });       \
	}                                                                                                        \
	SIM_EXPORT CUresult cuMemsetD2D##bits##_v2_ptds(                                                         \
		CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height)                          \
	{                                                                                                        \
		SIM_ENTER(cuMemsetD2D##bits##_v2_ptds);                                                          \
		return run(CU_STREAM_PER_THREAD, (sim_memset_params){ dst, pitch, value, bits / 8, width, height }); \
	}                                                                                                        \
	SIM_EXPORT CUresult cuMemsetD2D##bits##Async(                                                            \
		CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream stream)         \
	{                                                                                                        \
		SIM_ENTER(cuMemsetD2D##bits##Async);                                                             \
		return run(stream, (sim_memset_params){ dst, pitch, value, bits / 8, width, height });     \
	}                                                                                                        \
	SIM_EXPORT CUresult cuMemsetD2D##bits##Async_ptsz(                                                       \
		CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream stream)         \
	{                                                                                                        \
		return cuMemsetD2D##bits##Async(dst, pitch, value, width, height, SIM_PTSZ(stream));             \
	}

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)
