/* SPDX-License-Identifier: Apache-2.0
 *
 * Taking memory out of the tenant's quota and putting it back.  A reservation is one ledger operation.  If it does not
 * fit, the process reaps dead processes, measures the overhead again, trims its own pools, and then asks the tenant's
 * other processes to trim theirs.
 */
#include "shim.h"

/* Bytes that another tenant is charged for do not count. */
static int try_once(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes)
{
	uint64_t limit = gl_limit_bytes(gpu), lent;
	int r = gl_account_add(gpu, kind, (int64_t)bytes, limit);
	if (r == -ENOMEM && (lent = gl_lent_bytes(gpu->index, GL_MAX_SLOTS)) != 0)
		r = gl_account_add(gpu, kind, (int64_t)bytes, limit + lent);
	return r;
}

/* Tries again after each answer of another process. */
static int ask_and_try(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes)
{
	struct gl_plea plea = {0, 0};
	int r = -ENOMEM;
	while (r == -ENOMEM && gl_pools_ask_siblings(gpu, &plea))
		r = try_once(gpu, kind, bytes);
	gl_pools_ask_end(gpu, &plea);
	return r;
}

static int change_trying_hard(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes)
{
	if (bytes > INT64_MAX)
		return -ENOMEM;
	int r = try_once(gpu, kind, bytes);
	if (r != -ENOMEM || bytes > gl_limit_bytes(gpu))
		return r;
	if (gl_segment_reap() > 0)
		r = try_once(gpu, kind, bytes);
	if (r == -ENOMEM) {
		(void)gl_overhead_measure(gpu); /* refreshes the pools' charges too */
		r = try_once(gpu, kind, bytes);
	}
	if (r == -ENOMEM && gl_pools_trim(gpu))
		r = try_once(gpu, kind, bytes);
	return r == -ENOMEM ? ask_and_try(gpu, kind, bytes) : r;
}

int gl_reserve_uncounted(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes)
{
	gl_overhead_refresh(gpu);
	if (change_trying_hard(gpu, kind, bytes) != 0)
		return -ENOMEM;
	GL_TEST_POINT("reserved");
	return 0;
}

int gl_reserve(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes)
{
	int r = gl_reserve_uncounted(gpu, kind, bytes);
	if (r != 0)
		gl_count_refusal(gpu, bytes);
	return r;
}

int gl_recharge_within(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t from, uint64_t to)
{
	if (to <= from) {
		gl_recharge(gpu, kind, from, to);
		return 0;
	}
	return change_trying_hard(gpu, kind, to - from);
}

