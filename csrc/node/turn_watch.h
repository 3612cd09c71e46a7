/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking at the books of a turn's holder until a decision is due; hypervisor/scheduler/turn_watch.py says what is looked for, and a
 * test holds the two to the same answers.
 */
#ifndef GL_NODE_VIGIL_H
#define GL_NODE_VIGIL_H

#include "layout.h"

/* cffi: begin */
struct gl_vigil {
	struct gl_usage *usage;  /* NULL: none */
	uint32_t device;         /* entry in it, below GL_MAX_DEVICES */
	uint32_t over;           /* 1: a decision is due */
	uint64_t spent_ns, queue_end_ns, begin_ns, until_spent_ns, queued_ns, next_ns, used_up_ns, left_ns;
};

/* Looks at the books if it is time to.  A file that was cut short ends the vigil. */
void gl_vigil_look(struct gl_vigil *vigil, uint64_t now_ns);
/* cffi: end */

#endif
