/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's memory accounts in shared memory: one total per device and one account per process and device, always
 * changed together.  No lock: any process may be killed or stopped at any instruction, and the other processes continue
 * with exact accounts.  The top of ledger.c describes the algorithm.  Pure over mapped memory; Python uses the same
 * code.
 */
#ifndef GL_LEDGER_H
#define GL_LEDGER_H

#include "layout.h"

/* cffi: begin */
/* Adds delta to slot target's account and to the device's total in one step, acting as slot actor.
 * 0; -ENOMEM: a positive delta would take the total above limit (UINT64_MAX: no limit), nothing changed;
 * -EINVAL: the arguments or the segment's content make no sense (an account below zero, a total above 2^48).
 * At most one call at a time per actor and device: the caller locks. */
int gl_ledger_add(struct gl_usage *usage, uint32_t device, uint32_t actor, uint32_t target, int64_t delta,
		  uint64_t limit);
/* Bytes reserved on the device by the whole tenant, and by one slot.  Read-only: a read-only mapping suffices. */
uint64_t gl_ledger_total(const struct gl_usage *usage, uint32_t device);
uint64_t gl_ledger_account(const struct gl_usage *usage, uint32_t device, uint32_t slot);
/* cffi: end */

#endif
