/* SPDX-License-Identifier: Apache-2.0
 *
 * One change of the tenant's memory account, and uncharging.
 */
#include "shim.h"

int gl_account_add(struct gl_gpu *gpu, enum gl_memory_kind kind, int64_t delta, uint64_t limit)
{
	gl_lock(&gl_self.ledger_lock[gpu->index]);
	uint32_t slot = (uint32_t)gl_self.slot;
	int r = gl_ledger_add(gl_self.usage, gpu->index, slot, slot, delta, limit);
	gl_unlock(&gl_self.ledger_lock[gpu->index]);
	if (r == 0) {
		gl_add_relaxed(&gpu->account->kind_bytes[kind], (uint64_t)delta);
		if (delta < 0)
			gl_memory_freed(gpu);
	} else if (r != -ENOMEM) {
		gl_log(GL_WARN, "the tenant's books do not add up: %lld bytes more cannot be written down", (long long)delta);
	}
	return r;
}

void gl_uncharge(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes)
{
	GL_TEST_POINT("releasing");
	if (bytes)
		(void)gl_account_add(gpu, kind, -(int64_t)bytes, UINT64_MAX);
}

void gl_recharge(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t from, uint64_t to)
{
	if (from != to)
		(void)gl_account_add(gpu, kind, (int64_t)(to - from), UINT64_MAX);
}

void gl_uncharge_block(const struct gl_block *block)
{
	if (block->share) {
		gl_shared_leave(block->share);
		if (!block->imported)
			return;
	}
	if (block->space == GL_SPACE_POINTER && (block->kind == GL_MEM_POOL || block->kind == GL_MEM_GRAPH))
		return; /* its bytes are in its pool's or graph's charge */
	struct gl_gpu *gpu = gl_gpu_of((CUdevice)block->ordinal);
	if (gpu && block->imported)
		gl_sub_relaxed(&gpu->imported_bytes, block->bytes);
	if (gpu && block->bytes)
		gl_uncharge(gpu, (enum gl_memory_kind)block->kind, block->bytes);
}
