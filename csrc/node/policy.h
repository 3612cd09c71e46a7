/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's writes: tenants' policies, and the node's state.  A change of a policy entry wakes the threads that wait on
 * it.  All functions return 0, -EINVAL (no such entry) or -EFAULT (the file was truncated).
 */
#ifndef GL_NODE_POLICY_H
#define GL_NODE_POLICY_H

#include "layout.h"

/* cffi: begin */
int gl_node_policy_begin(struct gl_policy *policy, const char *tenant, uint64_t created_ns);
int gl_node_state_begin(struct gl_state *state, uint64_t created_ns, uint32_t pid);
/* 0 if the segment is a policy or state of this layout; else -EPROTO or -EFAULT. */
int gl_node_policy_check(const struct gl_policy *policy);
/* heartbeat_ns by CLOCK_MONOTONIC, daemon_start_ns by CLOCK_REALTIME. */
int gl_node_policy_heartbeat(struct gl_policy *policy, uint64_t heartbeat_ns, uint64_t daemon_start_ns);
int gl_node_state_heartbeat(struct gl_state *state, uint64_t heartbeat_ns, uint64_t daemon_start_ns);
/* Copies all of *from except the fields in gl_grant, memory_wanted and change. */
int gl_node_policy_allow(struct gl_policy *policy, uint32_t device, const struct gl_policy_device *from);
/* Sets the tenant's gang mode, enum gl_gang_mode.  Wakes no thread, so call it before gl_node_policy_allow. */
int gl_node_policy_gang(struct gl_policy *policy, uint32_t mode);
/* The fields of gl_policy_device that change from turn to turn, under the same names. */
struct gl_grant {
	uint64_t granted_ns, run_ahead_ns, exclusive_from_ns, start_ns;
	uint32_t shared, sharers;
};
int gl_node_policy_grant(struct gl_policy *policy, uint32_t device, const struct gl_grant *grant);
/* Tells whether the tenant must ring when it frees memory. */
int gl_node_policy_want_memory(struct gl_policy *policy, uint32_t device, uint32_t wanted);
/* Signals that a command waits for one of the tenant's processes. */
int gl_node_policy_command(struct gl_policy *policy);
int gl_node_state_gpu(struct gl_state *state, uint32_t index, const struct gl_state_gpu *from, uint32_t gpus);
/* cffi: end */

#endif
