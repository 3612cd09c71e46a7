/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of processes outside the tenant, charged to the process that imports it.
 */
#include "shim.h"

bool gl_imported_begin(struct gl_gpu *gpu, struct gl_block *block, uint64_t bytes)
{
	if (gl_reserve(gpu, (enum gl_memory_kind)block->kind, bytes) != 0)
		return false;
	gl_add_relaxed(&gpu->imported_bytes, bytes);
	block->ordinal = (uint32_t)gpu->ordinal;
	block->bytes += bytes;
	block->imported = 1;
	return true;
}
