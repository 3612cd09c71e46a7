/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's segment, as the library uses it.  What the daemon and the command line use of it too, and is pure, is in
 * ledger.h, slots.h and live_quota.h.
 */
#ifndef GL_SEGMENT_H
#define GL_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

#pragma GCC visibility push(hidden)

/* ---- name.c ---- */

/* The segment of the default tenant (no GPULIMIT_TENANT) is there with living processes, or that cannot be told. */
bool gl_segment_exists(void);

/* ---- segment.c: the tenant's segment and this process's slot ---- */

struct gl_device *gl_segment_find_device(const uint8_t uuid[16], uint32_t *index);
/* Opens or makes the segment of gl_self.quota's tenant, or opens the one that the daemon has made, and claims a slot.
 * 0 or negative errno (logged). */
int gl_segment_attach(bool again);
/* Why the segment cannot be used. */
const char *gl_segment_reason(int error);
/* What gl_segment_attach returned may have passed when it is called later. */
bool gl_segment_may_do_later(int error);
/* Gives back what dead processes held.  Returns the number of slots cleared. */
int gl_segment_reap(void);
/* The pid of the slot's process in this process's pid namespace; 0: it is dead, or cannot be seen from here. */
uint32_t gl_segment_pid(uint32_t slot);
/* Makes sure that the table of shared memory can be written to.  0 or -ENOSPC. */
int gl_segment_room_for_shares(void);
/* Entry for a device, added if new (NULL: gl_self.entry_error says why not) (limits only set when added by the first living process). */
struct gl_device *gl_segment_device(const uint8_t uuid[16], uint64_t card_bytes, uint64_t limit_bytes,
				    uint32_t compute_percent, uint32_t weight, uint32_t *index);

/* Rings the segment's doorbell: the daemon looks at this tenant. */
void gl_doorbell_ring(void);

#pragma GCC visibility pop

#endif
