/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that several processes of the tenant hold: exported by one, imported by others.  One of them is charged.  When
 * it releases the memory or dies, the charge passes to another holder.  Without locks, as in the ledger.  Pure over the
 * mapped segment; the daemon uses the same code.
 */
#ifndef GL_SHARES_H
#define GL_SHARES_H

#include "layout.h"

#pragma GCC visibility push(hidden)

/* Adds an entry for memory that the process in `slot` exports and is charged for.  in_pool: the memory lies in a pool,
 * which is charged as a whole.  The entry, or -ENOSPC.  The caller has reserved room for the entries below `most`. */
int gl_share_add(struct gl_usage *usage, uint32_t slot, const struct gl_share *share);
/* Adds the process in `slot` as a holder of the memory of that name.  The entry, or -ENOENT.  Calls as for
 * gl_share_leave. */
int gl_share_join(struct gl_usage *usage, uint32_t slot, uint64_t key);
/* Removes the process in `slot` as a holder.  If it was charged, the charge passes to another holder; the last holder
 * uncharges.  Acts in the ledger as `slot`: the caller is that process, one call at a time, or holds the dead one's
 * record lock. */
void gl_share_leave(struct gl_usage *usage, uint32_t entry, uint32_t slot);
/* Removes a dead process from all entries; call before its account is cleared. */
void gl_share_leave_all(struct gl_usage *usage, uint32_t slot);
/* Bytes of a device that the process in `slot` is charged for although another process made them. */
uint64_t gl_share_adopted(const struct gl_usage *usage, uint32_t device, uint32_t slot);
/* cffi: begin */
/* Bytes in the account of a device, of one slot or (GL_MAX_SLOTS) of the tenant, that another tenant is charged for
 * now, because it made the memory or imported it earlier, and still holds it.  `fd`: the file of loans.h. */
uint64_t gl_share_lent(const struct gl_usage *usage, uint32_t device, uint32_t slot, int fd);
/* cffi: end */

#pragma GCC visibility pop

#endif
