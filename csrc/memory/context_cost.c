/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that a context costs.  It depends on card and driver, so it is learned: the smallest growth measured when
 * a context was made, shared by the tenant's processes.  That much is reserved before the next context is made; the
 * measured cost is charged afterwards.
 */
#include "process/limits.h"
#include "memory/nvml_usage.h"

#define MIB (UINT64_C(1) << 20)
/* Bounds of a plausible cost, for processes whose own use cannot be measured: there the growth of the whole card is
 * used. */
#define MIN_CONTEXT_BYTES (64 * MIB)
#define MAX_CONTEXT_BYTES (1024 * MIB)

static void learn(struct gl_gpu *gpu, uint64_t bytes)
{
	uint64_t known = gl_load_acquire(&gpu->device->context_bytes);
	while (bytes && (!known || bytes < known) &&
	       !__atomic_compare_exchange_n(&gpu->device->context_bytes, &known, bytes, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE))
		;
}

bool gl_overhead_context_begin(struct gl_gpu *gpu, struct gl_context_cost *cost)
{
	bool first = gl_load_relaxed(&gpu->account->contexts) == 0;
	if (!first)
		(void)gl_overhead_measure(gpu);
	cost->reserved = gl_load_acquire(&gpu->device->context_bytes);
	cost->overhead_before = gl_load_relaxed(&gpu->overhead_bytes);
	if (gl_reserve_uncounted(gpu, GL_MEM_OVERHEAD, cost->reserved) != 0)
		return false;
	gl_lock(&gpu->overhead_lock);
	gl_store_relaxed(&gpu->overhead_bytes, gpu->overhead_bytes + cost->reserved);
	gl_add_relaxed(&gpu->account->contexts, 1); /* so a measurement meanwhile keeps the reservation */
	gl_unlock(&gpu->overhead_lock);
	cost->card_before = UINT64_MAX;
	cost->listing.count = UINT32_MAX;
	if (first || gl_load_relaxed(&gpu->overhead_blind)) {
		gl_nvml_listing_take(gpu, &cost->listing);
		if (!gl_nvml_used_bytes(gpu, &cost->card_before))
			cost->card_before = UINT64_MAX;
	}
	return true;
}

void gl_overhead_context_cancel(struct gl_gpu *gpu, struct gl_context_cost *cost)
{
	gl_lock(&gpu->overhead_lock);
	gl_sub_relaxed(&gpu->account->contexts, 1);
	uint64_t back = cost->reserved < gpu->overhead_bytes ? cost->reserved : gpu->overhead_bytes;
	gl_store_relaxed(&gpu->overhead_bytes, gpu->overhead_bytes - back);
	gl_uncharge(gpu, GL_MEM_OVERHEAD, back);
	gl_unlock(&gpu->overhead_lock);
}

/* Free memory as the new context reports it: gives an upper bound of the cost, as it lacks other processes' memory
 * too. */
static uint64_t taken_as_seen_by(CUcontext context)
{
	size_t free = 0, total = 0;
	CUcontext popped;
	if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return 0;
	if (REAL(cuMemGetInfo_v2)(&free, &total) != CUDA_SUCCESS)
		free = total = 0;
	REAL(cuCtxPopCurrent_v2)(&popped);
	return total - free;
}

static void learn_unseen(struct gl_gpu *gpu, const struct gl_context_cost *cost, CUcontext context)
{
	uint64_t after, growth;
	if (cost->card_before != UINT64_MAX && gl_nvml_used_bytes(gpu, &after))
		growth = after > cost->card_before ? after - cost->card_before : 0;
	else if (gl_load_acquire(&gpu->device->context_bytes))
		return;
	else
		growth = taken_as_seen_by(context);
	learn(gpu, growth < MIN_CONTEXT_BYTES ? MIN_CONTEXT_BYTES : growth > MAX_CONTEXT_BYTES ? MAX_CONTEXT_BYTES : growth);
	gl_log(GL_INFO, "device %d: NVML does not show what this process uses; a context is taken to cost %llu bytes",
	       gpu->ordinal, (unsigned long long)gl_load_acquire(&gpu->device->context_bytes));
}

bool gl_overhead_context_end(struct gl_gpu *gpu, struct gl_context_cost *cost, CUcontext context)
{
	gl_nvml_listing_recognise(gpu, &cost->listing);
	if (gl_overhead_measure(gpu)) {
		uint64_t seen = gl_load_relaxed(&gpu->overhead_seen);
		learn(gpu, seen > cost->overhead_before ? seen - cost->overhead_before : 0);
	} else {
		learn_unseen(gpu, cost, context);
	}
	/* The first charge may have been the reservation; now it is the measured cost, and the learned cost is
	 * known. */
	(void)gl_overhead_measure(gpu);
	return !gl_over_limit(gpu);
}
