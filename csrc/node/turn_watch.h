/* SPDX-License-Identifier: Apache-2.0
 *
 * Polls the counters of a turn's holder until a decision is due.  hypervisor/scheduler/turn_watch.py describes the
 * decisions, and a test checks that both give the same answers.
 */
#ifndef GL_NODE_TURN_WATCH_H
#define GL_NODE_TURN_WATCH_H

#include "layout.h"

/* cffi: begin */
#define GL_WATCH_MIN_POLL_NS 50000   /* minimum time between two polls, whatever the counters are */
#define GL_WATCH_MAX_POLL_NS 2000000
#define GL_TURN_IDLE_TIMEOUT_NS 1000000     /* a holder without work for so long may lose its turn */
#define GL_MAX_USAGE_STEP_NS 100000000000   /* a larger use between two polls is not believed */

struct gl_turn_watch {
	struct gl_usage *usage;  /* NULL: none */
	uint32_t device;         /* entry in it, below GL_MAX_DEVICES */
	uint32_t expired;        /* 1: a decision is due */
	uint64_t spent_ns, queue_end_ns, begin_ns, until_spent_ns, queued_ns, next_ns, used_up_ns, left_ns;
};

/* Polls the counters if a poll is due.  A truncated file ends the watch. */
void gl_turn_watch_poll(struct gl_turn_watch *watch, uint64_t now_ns);
/* cffi: end */

#endif
