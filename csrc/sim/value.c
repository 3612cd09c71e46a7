/* SPDX-License-Identifier: Apache-2.0
 *
 * Values written and waited for in a stream: flags, in memory of the card.  In memory that the host may
 * change, a write happens at once, and the host thread opens the gate of a wait once the value fits.
 */
#define _GNU_SOURCE
#include <stdlib.h>

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

static bool has_come(void *object)
{
	return fits(object);
}

/* The bits of its flag that a value at `addr` takes. */
static uint64_t bits_of(CUdeviceptr addr, bool wide)
{
	return wide ? UINT64_MAX : 0xffffffffull << (addr % 8 * 8);
}

static struct sim_work work_of(CUstream stream, enum sim_op op, CUdeviceptr addr, uint64_t value, bool wide)
{
	struct sim_work work = { .word = addr };

	work.item.cost_ns = sim_model_of(stream->ctx->gpu)->event_ns;
	work.item.op = op;
	work.item.mask = bits_of(addr, wide);
	work.item.value = value;
	return work;
}

static CUresult wait_value(CUstream handle, CUdeviceptr addr, uint64_t value, unsigned int flags, bool wide)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!sim_range_ok(addr, wide ? 8 : 4) || addr % (wide ? 8 : 4) || (flags & ~(1u << 30)) > NOR)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->capture)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (sim_word_on_card(addr)) {
		struct sim_work work = work_of(stream, SIM_WAIT, addr, value, wide);
		work.item.how = flags & 3; /* the driver's numbers */
		return sim_submit_work(stream, &work);
	}
	struct waiting *w = malloc(sizeof(*w));
	if (!w)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*w = (struct waiting){ addr, value, flags & 3, wide };
	return sim_submit_host(stream, has_come, free, w);
}

static CUresult write_value(CUstream handle, CUdeviceptr addr, uint64_t value, bool wide)
{
	CUstream stream;

	SIM_TRY(sim_stream(handle, &stream));
	if (!sim_range_ok(addr, wide ? 8 : 4) || addr % (wide ? 8 : 4))
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->capture)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (sim_word_on_card(addr)) {
		struct sim_work work = work_of(stream, SIM_SET, addr, value, wide);
		return sim_submit_work(stream, &work);
	}
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
