/* SPDX-License-Identifier: Apache-2.0 */
#include "node/policy.h"

#include <limits.h>
#include <string.h>

#include "base/sys.h"
#include "node/sigbus_guard.h"
#include "segment/header.h"

/* The arguments of one call; each function sets those that its work needs. */
struct writing {
	struct gl_policy *policy;
	struct gl_state *state;
	struct gl_header *header;
	const struct gl_policy_device *allow;
	const struct gl_state_gpu *gpu;
	const char *tenant;
	const struct gl_grant *grant;
	uint64_t magic, created_ns, heartbeat_ns, daemon_start_ns;
	uint32_t device, wanted, gpus, pid, size, gang;
};

static int begin(void *argument)
{
	const struct writing *w = argument;
	if (w->state)
		w->state->daemon_pid = w->pid;
	gl_header_begin(w->header, w->magic, w->size, w->tenant, w->created_ns);
	return 0;
}

int gl_node_policy_begin(struct gl_policy *policy, const char *tenant, uint64_t created_ns)
{
	struct writing w = {.header = &policy->header, .magic = GL_POLICY_MAGIC, .size = sizeof *policy,
			    .tenant = tenant, .created_ns = created_ns};
	return gl_guarded(begin, &w);
}

int gl_node_state_begin(struct gl_state *state, uint64_t created_ns, uint32_t pid)
{
	struct writing w = {.state = state, .header = &state->header, .magic = GL_STATE_MAGIC, .size = sizeof *state,
			    .tenant = "", .created_ns = created_ns, .pid = pid};
	return gl_guarded(begin, &w);
}

static int check(void *argument)
{
	const struct gl_policy *policy = argument;
	return gl_header_is_valid(&policy->header, GL_POLICY_MAGIC, sizeof *policy) ? 0 : -EPROTO;
}

int gl_node_policy_check(const struct gl_policy *policy)
{
	return gl_guarded(check, (void *)policy);
}

static int beat(void *argument)
{
	const struct writing *w = argument;
	if (w->policy) {
		gl_store_release(&w->policy->daemon_start_ns, w->daemon_start_ns);
		gl_store_release(&w->policy->heartbeat_ns, w->heartbeat_ns);
	} else {
		gl_store_release(&w->state->daemon_start_ns, w->daemon_start_ns);
		gl_store_release(&w->state->heartbeat_ns, w->heartbeat_ns);
	}
	return 0;
}

int gl_node_policy_heartbeat(struct gl_policy *policy, uint64_t heartbeat_ns, uint64_t daemon_start_ns)
{
	struct writing w = {.policy = policy, .heartbeat_ns = heartbeat_ns, .daemon_start_ns = daemon_start_ns};
	return gl_guarded(beat, &w);
}

int gl_node_state_heartbeat(struct gl_state *state, uint64_t heartbeat_ns, uint64_t daemon_start_ns)
{
	struct writing w = {.state = state, .heartbeat_ns = heartbeat_ns, .daemon_start_ns = daemon_start_ns};
	return gl_guarded(beat, &w);
}

static void changed(struct gl_policy_device *d)
{
	__atomic_fetch_add(&d->change, 1, __ATOMIC_RELEASE);
	gl_futex_wake(&d->change, INT_MAX);
}

static int allow(void *argument)
{
	const struct writing *w = argument;
	struct gl_policy_device *d = &w->policy->device[w->device];
	memcpy(d->uuid, w->allow->uuid, sizeof d->uuid);
	gl_store_release(&d->suspended, w->allow->suspended);
	gl_store_release(&d->memory_limit_bytes, w->allow->memory_limit_bytes);
	gl_store_release(&d->compute_limit_percent, w->allow->compute_limit_percent);
	gl_store_release(&d->compute_request_percent, w->allow->compute_request_percent);
	gl_store_release(&d->weight, w->allow->weight);
	gl_store_release(&d->priority, w->allow->priority);
	gl_store_release(&d->memory_wait_ns, w->allow->memory_wait_ns);
	gl_store_release(&d->ready, w->allow->ready);
	changed(d);
	return 0;
}

int gl_node_policy_allow(struct gl_policy *policy, uint32_t device, const struct gl_policy_device *from)
{
	struct writing w = {.policy = policy, .device = device, .allow = from};
	return device < GL_MAX_NODE_DEVICES ? gl_guarded(allow, &w) : -EINVAL;
}

static int gang(void *argument)
{
	const struct writing *w = argument;
	gl_store_release(&w->policy->gang, w->gang);
	return 0;
}

int gl_node_policy_gang(struct gl_policy *policy, uint32_t mode)
{
	struct writing w = {.policy = policy, .gang = mode};
	return mode <= GL_GANG_NAMED ? gl_guarded(gang, &w) : -EINVAL;
}

static int grant(void *argument)
{
	const struct writing *w = argument;
	struct gl_policy_device *d = &w->policy->device[w->device];
	gl_store_release(&d->sharers, w->grant->sharers);
	gl_store_release(&d->start_ns, w->grant->start_ns); /* before the grant that start_ns delays */
	gl_store_release(&d->granted_ns, w->grant->granted_ns);
	gl_store_release(&d->run_ahead_ns, w->grant->run_ahead_ns);
	gl_store_release(&d->exclusive_from_ns, w->grant->exclusive_from_ns);
	gl_store_release(&d->shared, w->grant->shared); /* after the grant that it makes valid */
	changed(d);
	return 0;
}

int gl_node_policy_grant(struct gl_policy *policy, uint32_t device, const struct gl_grant *from)
{
	struct writing w = {.policy = policy, .device = device, .grant = from};
	return device < GL_MAX_NODE_DEVICES ? gl_guarded(grant, &w) : -EINVAL;
}

static int want_memory(void *argument)
{
	const struct writing *w = argument;
	gl_store_release(&w->policy->device[w->device].memory_wanted, w->wanted);
	return 0;
}

int gl_node_policy_want_memory(struct gl_policy *policy, uint32_t device, uint32_t wanted)
{
	struct writing w = {.policy = policy, .device = device, .wanted = wanted};
	return device < GL_MAX_NODE_DEVICES ? gl_guarded(want_memory, &w) : -EINVAL;
}

static int command(void *argument)
{
	struct gl_policy *policy = argument;
	__atomic_fetch_add(&policy->commands, 1, __ATOMIC_RELEASE);
	gl_futex_wake(&policy->commands, INT_MAX);
	return 0;
}

int gl_node_policy_command(struct gl_policy *policy)
{
	return gl_guarded(command, policy);
}

static int write_gpu(void *argument)
{
	const struct writing *w = argument;
	struct gl_state_gpu *gpu = &w->state->gpu[w->device];
	memcpy(gpu->uuid, w->gpu->uuid, sizeof gpu->uuid);
	gl_store_release(&gpu->tenants, w->gpu->tenants);
	gl_store_release(&gpu->memory_total_bytes, w->gpu->memory_total_bytes);
	gl_store_release(&gpu->memory_used_bytes, w->gpu->memory_used_bytes);
	gl_store_release(&gpu->utilisation_percent, w->gpu->utilisation_percent);
	gl_store_release(&gpu->healthy, w->gpu->healthy);
	gl_store_release(&gpu->sampled_ns, w->gpu->sampled_ns);
	gl_store_release(&gpu->ready, 1u);
	gl_store_release(&w->state->gpus, w->gpus);
	return 0;
}

int gl_node_state_gpu(struct gl_state *state, uint32_t index, const struct gl_state_gpu *from, uint32_t gpus)
{
	struct writing w = {.state = state, .device = index, .gpu = from, .gpus = gpus};
	return index < GL_MAX_NODE_DEVICES ? gl_guarded(write_gpu, &w) : -EINVAL;
}
