/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking at the books of a turn's holder until a decision is due; hypervisor/scheduler/turn_watch.py says what is looked for, and a
 * test holds the two to the same answers.
 */
#ifndef GL_NODE_VIGIL_H
#define GL_NODE_VIGIL_H

#include "layout.h"

/* cffi: begin */
#define GL_WATCH_MIN_POLL_NS 50000   /* between two polls, whatever the counters say */
#define GL_WATCH_MAX_POLL_NS 2000000
#define GL_TURN_IDLE_TIMEOUT_NS 1000000     /* without work for so long, a holder may lose its turn */
#define GL_MAX_USAGE_STEP_NS 100000000000   /* more use than that between two polls is no measurement */

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
