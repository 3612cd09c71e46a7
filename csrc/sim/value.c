/* SPDX-License-Identifier: Apache-2.0
 *
 * Values written and waited for in a stream.  A wait holds the queue by a gate that the host thread opens
 * once the value fits, so the whole context waits, not just the stream.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "sim.h"

enum { GEQ, EQ, AND, NOR };

struct waiting {
	uint64_t addr, value;
	unsigned int how;
	bool wide;
};

static bool fits(const struct waiting *w)
{
	uint64_t now = w->wide ? __atomic_load_n((uint64_t *)(uintptr_t)w->addr, __ATOMIC_ACQUIRE) :
		__atomic_load_n((uint32_t *)(uintptr_t)w->addr, __ATOMIC_ACQUIRE);

	switch (w->how) {
	case GEQ: return w->wide ? (int64_t)(now - w->value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)w->value) >= 0;
	case EQ: return now == w->value;
	case AND: return now & w->value;
	default: return w->wide ? ~(now | w->value) : (uint32_t)~(uint32_t)(now | w->value);
	}
}

static void wait_for(void *object)
{
	struct waiting *w = object;

	while (!fits(w))
		nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
	free(w);
}

static CUresult wait_value(CUstream handle, CUdeviceptr addr, uint64_t value, unsigned int flags, bool wide)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!sim_range_ok(addr, wide ? 8 : 4) || addr % (wide ? 8 : 4) || (flags & ~(1u << 30)) > NOR)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->capture)
		return CUDA_ERROR_NOT_SUPPORTED;
	struct waiting *w = malloc(sizeof(*w));
	if (!w)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*w = (struct waiting){ addr, value, flags & 3, wide };
	return sim_submit_host(stream, wait_for, w);
}

static CUresult write_value(CUstream handle, CUdeviceptr addr, uint64_t value, bool wide)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!sim_range_ok(addr, wide ? 8 : 4) || addr % (wide ? 8 : 4))
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->capture)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (wide)
		__atomic_store_n((uint64_t *)(uintptr_t)addr, value, __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint32_t *)(uintptr_t)addr, (uint32_t)value, __ATOMIC_RELEASE);
	return sim_submit(stream, sim_model_of(stream->ctx->gpu)->event_ns, NULL);
}

/* Each call in both generations, which differ in nothing that is simulated, and their twins. */
#define VALUES(bits, type, suffix)                                                                                     \
	SIM_EXPORT CUresult cuStreamWaitValue##bits##suffix(CUstream stream, CUdeviceptr addr, type value, unsigned int flags)  \
	{                                                                                                              \
		SIM_ENTER(cuStreamWaitValue##bits##suffix);                                                            \
		return wait_value(stream, addr, value, flags, bits == 64);                                             \
	}                                                                                                              \
	SIM_EXPORT CUresult cuStreamWaitValue##bits##suffix##_ptsz(                                                    \
		CUstream stream, CUdeviceptr addr, type value, unsigned int flags)                                     \
	{                                                                                                              \
		return cuStreamWaitValue##bits##suffix(SIM_PTSZ(stream), addr, value, flags);                          \
	}                                                                                                              \
	SIM_EXPORT CUresult cuStreamWriteValue##bits##suffix(CUstream stream, CUdeviceptr addr, type value, unsigned int flags) \
	{                                                                                                              \
		SIM_ENTER(cuStreamWriteValue##bits##suffix);                                                           \
		(void)flags;                                                                                           \
		return write_value(stream, addr, value, bits == 64);                                                   \
	}                                                                                                              \
	SIM_EXPORT CUresult cuStreamWriteValue##bits##suffix##_ptsz(                                                   \
		CUstream stream, CUdeviceptr addr, type value, unsigned int flags)                                     \
	{                                                                                                              \
		return cuStreamWriteValue##bits##suffix(SIM_PTSZ(stream), addr, value, flags);                         \
	}
VALUES(32, uint32_t, )
VALUES(64, uint64_t, )
VALUES(32, uint32_t, _v2)
VALUES(64, uint64_t, _v2)
