/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's segment, as the library uses it.  The pure functions that the daemon and the command line use too are in
 * ledger.h, slots.h and live_quota.h.
 */
#ifndef GL_SEGMENT_H
#define GL_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

#pragma GCC visibility push(hidden)

/* ---- name.c ---- */

/* True if the default tenant's segment (no GPULIMIT_TENANT) exists with living processes, or if that cannot be
 * determined. */
bool gl_segment_exists(void);

/* ---- segment.c: the tenant's segment and this process's slot ---- */

struct gl_device *gl_segment_find_device(const uint8_t uuid[16], uint32_t *index);
/* Opens or makes the segment of gl_self.quota's tenant, or opens the one that the daemon has made, and claims a slot.
 * 0 or negative errno (logged). */
int gl_segment_attach(bool again);
/* The reason why the segment cannot be used, for messages. */
const char *gl_segment_reason(int error);
/* True if gl_segment_attach, which returned this error, may succeed later. */
bool gl_segment_may_do_later(int error);
/* Uncharges what dead processes held.  Returns the number of slots cleared. */
int gl_segment_reap(void);
/* The pid of the slot's process in this process's pid namespace; 0: it is dead, or not visible from here. */
uint32_t gl_segment_pid(uint32_t slot);
/* Makes sure that the table of shared memory can be written to.  0 or -ENOSPC. */
int gl_segment_room_for_shares(void);
/* Entry for a device, added if new; NULL: gl_self.entry_error has the reason.  The limits are only set when the first
 * living process adds the entry. */
struct gl_device *gl_segment_device(const uint8_t uuid[16], uint64_t card_bytes, uint64_t limit_bytes,
				    uint32_t compute_percent, uint32_t weight, uint32_t *index);

/* Rings the segment's doorbell: the daemon looks at this tenant. */
void gl_doorbell_ring(void);

#pragma GCC visibility pop

#endif
