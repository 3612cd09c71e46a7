/* SPDX-License-Identifier: Apache-2.0
 *
 * The slots of a usage segment: finds dead processes, and uncharges what they held.  A living process holds record
 * locks on the first bytes of its slot; the kernel drops them at death.  Pure over the mapped segment and its file; the
 * daemon uses the same code.
 */
#ifndef GL_SLOTS_H
#define GL_SLOTS_H

#include "layout.h"

/* Tries to lock or unlock (F_WRLCK, F_UNLCK) one byte of the segment's file.  0 or negative errno. */
int gl_record_lock(int fd, short type, uint64_t offset);
/* The same for all bytes by which a slot's process shows that it is alive: alive.h. */
int gl_slot_lock(int fd, short type, uint32_t slot);
enum { GL_ALIVE_BYTES = 2 };
uint64_t gl_slot_offset(uint32_t slot);
/* 1: some process holds a slot of the segment, so the tenant lives (the caller's own locks do not count); 0: none does;
 * or negative errno: that cannot be determined, and the segment must not be taken for unused. */
int gl_slots_inhabited(int fd);
/* Clears and frees a slot.  The caller holds its record lock, and so may act in the ledger as that slot. */
void gl_slot_clear(struct gl_usage *usage, uint32_t slot);

/* cffi: begin */
/* Clears the slot if a dead process left it in use: 1.  0: it is free, or its process lives, or there is no such
 * slot.  Not for the caller's own slot, and only from one thread of a process at a time. */
int gl_slot_reap(struct gl_usage *usage, int fd, uint32_t slot);
/* cffi: end */

#endif
