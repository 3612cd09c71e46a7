/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that several processes of the tenant hold: exported by one, imported by others.  One of them is charged; when
 * it lets go or dies, the charge passes to another that still holds it.  Without locks, as in the ledger.  Pure over the
 * mapped segment; the daemon uses the same code.
 */
#ifndef GL_SHARES_H
#define GL_SHARES_H

#include "layout.h"

#pragma GCC visibility push(hidden)

/* The process in `slot` exports memory that it is charged for.  in_pool: the charge is its pool's.  The entry, or
 * -ENOSPC.  The caller has made sure of the room of entries below `most`. */
int gl_share_add(struct gl_usage *usage, uint32_t slot, const struct gl_share *share);
/* The process in `slot` holds the memory of that name, too.  The entry, or -ENOENT.  Calls as for gl_share_leave. */
int gl_share_join(struct gl_usage *usage, uint32_t slot, uint64_t key);
/* It holds it no longer: passes the charge on if it was charged, gives it back if it was the last.  Acts in the ledger
 * as `slot`: the caller is that process, one call at a time, or holds the dead one's record lock. */
void gl_share_leave(struct gl_usage *usage, uint32_t entry, uint32_t slot);
/* The process in `slot` is dead; before its account is cleared. */
void gl_share_leave_all(struct gl_usage *usage, uint32_t slot);
/* Bytes of a device that the process in `slot` is charged for without having made them. */
uint64_t gl_share_adopted(const struct gl_usage *usage, uint32_t device, uint32_t slot);
/* cffi: begin */
/* Bytes in the books of a device, of one slot or (GL_MAX_SLOTS) of the tenant, that another tenant is charged for now: it
 * made the memory, or imported it earlier, and holds it.  `fd`: the file of loans.h. */
uint64_t gl_share_lent(const struct gl_usage *usage, uint32_t device, uint32_t slot, int fd);
/* cffi: end */

#pragma GCC visibility pop

#endif
