/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of processes outside the tenant.  The process that imports it is charged, even if another tenant is charged
 * too, so that some process always is.  Bytes that another tenant is charged for are deducted where quotas are checked
 * (gl_lent_bytes).
 */
#include "process/limits.h"
#include "segment/loans.h"
#include "shim.h"

bool gl_imported_begin(struct gl_gpu *gpu, struct gl_block *block, uint64_t common, uint64_t bytes)
{
	enum gl_memory_kind kind = (enum gl_memory_kind)block->kind;
	bool paid = common && gl_loan_is_paid(gl_loan_file(), common, GL_LOAN_PLACES);
	if (paid)
		gl_recharge(gpu, kind, 0, bytes);
	else if (gl_reserve(gpu, kind, bytes) != 0)
		return false;
	block->ordinal = (uint32_t)gpu->ordinal;
	if (gl_shared_import(gpu, block, common, bytes))
		return true;
	if (paid && gl_over_limit(gpu)) {
		gl_uncharge(gpu, kind, bytes);
		gl_count_refusal(gpu, bytes);
		return false;
	}
	gl_add_relaxed(&gpu->imported_bytes, bytes);
	block->bytes += bytes;
	block->imported = 1;
	return true;
}
