/* SPDX-License-Identifier: Apache-2.0
 *
 * Taking memory out of the tenant's quota and putting it back.  A reservation is one ledger operation; only when it
 * does not fit is more tried: what dead processes left, what this process's pools hold unused, and a fresh look
 * at what the card really holds.
 */
#include "shim.h"

static int change(struct gl_gpu *gpu, enum gl_memory_kind kind, int64_t delta, uint64_t limit)
{
	gl_lock(&gl_self.ledger_lock[gpu->index]);
	uint32_t slot = (uint32_t)gl_self.slot;
	int r = gl_ledger_add(gl_self.usage, gpu->index, slot, slot, delta, limit);
	gl_unlock(&gl_self.ledger_lock[gpu->index]);
	if (r == 0) {
		gl_add(&gpu->account->kind_bytes[kind], (uint64_t)delta);
		if (delta < 0)
			gl_memory_freed(gpu);
	} else if (r != -ENOMEM) {
		gl_log(GL_WARN, "the tenant's books do not add up: %lld bytes more cannot be written down", (long long)delta);
	}
	return r;
}

static int change_trying_hard(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes)
{
	if (bytes > INT64_MAX)
		return -ENOMEM;
	int r = change(gpu, kind, (int64_t)bytes, gl_limit_bytes(gpu));
	if (r != -ENOMEM || bytes > gl_limit_bytes(gpu))
		return r;
	if (gl_segment_reap() > 0)
		r = change(gpu, kind, (int64_t)bytes, gl_limit_bytes(gpu));
	if (r == -ENOMEM) {
		(void)gl_overhead_measure(gpu); /* refreshes the pools too */
		r = change(gpu, kind, (int64_t)bytes, gl_limit_bytes(gpu));
	}
	if (r == -ENOMEM && gl_pools_trim(gpu))
		r = change(gpu, kind, (int64_t)bytes, gl_limit_bytes(gpu));
	return r;
}

int gl_reserve(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes)
{
	gl_overhead_refresh(gpu);
	if (change_trying_hard(gpu, kind, bytes) == 0) {
		GL_TEST_POINT("reserved");
		return 0;
	}
	gl_count_refusal(gpu, bytes);
	return -ENOMEM;
}

void gl_release(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes)
{
	GL_TEST_POINT("releasing");
	if (bytes)
		(void)change(gpu, kind, -(int64_t)bytes, UINT64_MAX);
}

void gl_recharge(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t from, uint64_t to)
{
	if (from != to)
		(void)change(gpu, kind, (int64_t)(to - from), UINT64_MAX);
}

int gl_recharge_within(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t from, uint64_t to)
{
	if (to <= from) {
		gl_recharge(gpu, kind, from, to);
		return 0;
	}
	return change_trying_hard(gpu, kind, to - from);
}

void gl_count_refusal(struct gl_gpu *gpu, uint64_t bytes)
{
	if (gl_patience_hides(false))
		return;
	gl_add(&gpu->device->refused, 1);
	gl_log(GL_WARN, "device %d: %llu bytes refused: %llu of %llu in use", gpu->ordinal, (unsigned long long)bytes,
	       (unsigned long long)gl_ledger_total(gl_self.usage, gpu->index), (unsigned long long)gl_limit_bytes(gpu));
}

void gl_count_card_refusal(struct gl_gpu *gpu)
{
	if (gl_patience_hides(true))
		return;
	gl_add(&gpu->device->refused_by_card, 1);
	gl_log(GL_WARN, "device %d: the card itself is full, not the quota", gpu->ordinal);
}
