/* SPDX-License-Identifier: Apache-2.0
 *
 * Host functions run on a thread of their own, while a gate holds their stream.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "sim.h"

#define HOST_POLL_NS 50000ull

struct host_call {
	struct host_call *next;
	CUcontext ctx;
	uint64_t ctx_id, item;
	bool (*ready)(void *);
	void (*run)(void *);
	void *user;
};
static struct host_call *host_calls;
static pthread_t host_thread;
static bool host_running;

static void open_gate(struct host_call *call)
{
	if (!call->ctx->alive || call->ctx->id != call->ctx_id)
		return;
	sim_machine_lock();
	sim_gpu_advance(call->ctx->gpu, sim_now());
	sim_item_at(sim_queue_of(call->ctx), call->item)->cost_ns = 0;
	sim_catch_up(call->ctx);
	sim_machine_unlock();
}

/* Whether a call may be made; `*look_ns`: if not, when to look again. */
static bool due(const struct host_call *call, uint64_t *look_ns)
{
	CUcontext ctx = call->ctx;
	bool reached = true;

	sim_machine_lock();
	uint64_t now = sim_now(), when = now + HOST_POLL_NS;
	if (ctx->alive && ctx->id == call->ctx_id) {
		sim_catch_up(ctx);
		reached = sim_item_reached(sim_queue_of(ctx), call->item);
		if (!reached && sim_gpu_forecast(sim_queue_of(ctx), call->item) > when)
			when = sim_gpu_forecast(sim_queue_of(ctx), call->item);
	}
	sim_machine_unlock();
	if (reached && (!call->ready || call->ready(call->user)))
		return true;
	if (when > now + SIM_LOOK_AGAIN_NS)
		when = now + SIM_LOOK_AGAIN_NS;
	if (when < *look_ns)
		*look_ns = when;
	return false;
}

/* Take the first call that may be made off the list; NULL if that is none. */
static struct host_call *take_due(uint64_t *look_ns)
{
	*look_ns = UINT64_MAX;
	for (struct host_call **at = &host_calls; *at; at = &(*at)->next) {
		struct host_call *call = *at;
		if (!due(call, look_ns))
			continue;
		*at = call->next;
		return call;
	}
	return NULL;
}

static void *host_loop(void *unused)
{
	uint64_t look_ns;

	(void)unused;
	sim_lock();
	while (host_calls) {
		struct host_call *call = take_due(&look_ns);
		sim_unlock();
		if (call)
			call->run(call->user);
		else
			sim_sleep_until(look_ns);
		sim_lock();
		if (!call)
			continue;
		open_gate(call);
		free(call);
	}
	host_running = false;
	sim_unlock();
	return NULL;
}

static bool start_host_thread(void)
{
	sigset_t all, before;
	int rc;

	if (host_running)
		return true;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&host_thread, NULL, host_loop, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		return false;
	pthread_detach(host_thread);
	return host_running = true;
}

/* Hold the stream until `run` has returned, which is called once `ready` (NULL: at once) says so. */
CUresult sim_submit_host(CUstream stream, bool (*ready)(void *), void (*run)(void *), void *user)
{
	struct host_call *call = malloc(sizeof(*call)), **tail = &host_calls;

	if (!call)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = sim_submit(stream, SIM_GATE_SHUT, NULL);
	if (result) {
		free(call);
		return result;
	}
	*call = (struct host_call){
		.ctx = stream->ctx, .ctx_id = stream->ctx->id, .item = stream->last - 1, .ready = ready, .run = run, .user = user,
	};
	while (*tail)
		tail = &(*tail)->next;
	*tail = call;
	return start_host_thread() ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
