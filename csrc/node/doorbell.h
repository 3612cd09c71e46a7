/* SPDX-License-Identifier: Apache-2.0
 *
 * Sleeping on the doorbells of many tenants at once.
 */
#ifndef GL_NODE_DOORBELL_H
#define GL_NODE_DOORBELL_H

#include <stdint.h>

#include "node/turn_watch.h"

/* cffi: begin */
#define GL_MAX_BELLS 128

struct gl_bell {
	uint32_t *word;
	uint32_t seen;       /* the word's value when the tenant was last read */
	uint32_t ignored;    /* not 0: the daemon does not wake when it rings */
};

/* Sleeps until one of the words differs from `seen`, until a turn watch expires, or until the deadline by
 * CLOCK_MONOTONIC.  0 or more: a bell rang; -EAGAIN: some word differs already; -ETIMEDOUT, also if a turn watch expires;
 * -EINTR; -EFAULT: a word's file was cut short; -EINVAL: more than GL_MAX_BELLS.  Where the kernel cannot wait for many
 * words (before Linux 5.16) they are read every 2 ms; poll 1 does so in any case. */
int gl_bells_wait(const struct gl_bell *bells, uint32_t count, struct gl_turn_watch *watches, uint32_t watch_count,
		  uint64_t deadline_ns, int poll);
/* Sets rang[i] to 1 where a word differs from `seen` or is gone, else to 0. */
void gl_bells_rang(const struct gl_bell *bells, uint32_t count, uint8_t *rang);
/* Rings one of the caller's own bells. */
void gl_bell_ring(uint32_t *word);
/* cffi: end */

#endif
