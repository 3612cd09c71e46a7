/* SPDX-License-Identifier: Apache-2.0
 *
 * Submitting work and waiting for it.  Items go into the context's queue of the shared machine; events
 * that mark an item are stamped (harvested) by their own process before the item's place is used again.
 * Host functions run on a thread of their own while their gate holds the queue.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "sim.h"

#define LOOK_AGAIN_NS 5000000ull /* another context may come, or die */
#define GATE_POLL_NS 100000ull
#define LANE_POLL_NS 20000ull /* while an item waits for one of another lane */

struct host_call {
	struct host_call *next;
	CUcontext ctx;
	uint64_t item;
	void (*run)(void *);
	void *user;
};
static struct host_call *host_calls, **host_tail = &host_calls;
static pthread_t host_thread;
static bool host_running;

static struct sim_queue *queue_of(CUcontext ctx)
{
	return &sim_machine->queues[ctx->queue];
}

/* Both locks held: bring the card up to now and stamp the events whose items are done. */
static void catch_up(CUcontext ctx)
{
	struct sim_queue *q = queue_of(ctx);

	sim_gpu_advance(ctx->gpu, sim_now());
	for (; ctx->harvested < q->head; ctx->harvested++) {
		CUevent *mark = &ctx->marks[ctx->harvested % SIM_QUEUE_DEPTH]; /* all below head are done */
		CUevent event = *mark;
		*mark = NULL;
		if (!event || event->on != ctx || event->item != ctx->harvested)
			continue;
		event->done = true;
		event->done_ns = sim_item_at(q, ctx->harvested)->done_ns;
	}
}

/* Both locks held on entry, neither meanwhile: sleep until item `end - 1` may be done. */
static void doze(CUcontext ctx, uint64_t end)
{
	const struct sim_queue *q = queue_of(ctx);
	uint64_t now = sim_now(), until = sim_gpu_forecast(q, end - 1);
	bool gated = false;

	for (uint64_t i = q->head; i < end && !gated; i++)
		gated = sim_item_at(q, i)->cost_ns == SIM_GATE_SHUT;
	if (gated)
		until = now + GATE_POLL_NS;
	if (q->lanes > 1 && until < now + LANE_POLL_NS)
		until = now + LANE_POLL_NS;
	if (until > now + LOOK_AGAIN_NS)
		until = now + LOOK_AGAIN_NS;
	sim_machine_unlock();
	sim_unlock();
	sim_sleep_until(until);
	sim_lock();
	sim_machine_lock();
	sim_sweep(false);
}

void sim_wait_item(CUcontext ctx, uint64_t end)
{
	uint64_t id = ctx->id;

	sim_machine_lock();
	for (;;) {
		if (!ctx->alive || ctx->id != id)
			break;
		catch_up(ctx);
		if (!end || sim_item_done(queue_of(ctx), end - 1))
			break;
		doze(ctx, end);
	}
	sim_machine_unlock();
}

bool sim_done(CUcontext ctx, uint64_t end)
{
	if (!ctx->alive)
		return true;
	sim_machine_lock();
	sim_sweep(false);
	catch_up(ctx);
	bool done = !end || sim_item_done(queue_of(ctx), end - 1);
	sim_machine_unlock();
	return done;
}

bool sim_context_done(CUcontext ctx)
{
	sim_done(ctx, 0);
	sim_machine_lock();
	bool done = queue_of(ctx)->head == queue_of(ctx)->tail;
	sim_machine_unlock();
	return done;
}

void sim_wait_context(CUcontext ctx)
{
	uint64_t id = ctx->id;

	sim_machine_lock();
	uint64_t first = queue_of(ctx)->head, end = queue_of(ctx)->tail;
	sim_machine_unlock();
	if (queue_of(ctx)->lanes < 2)
		first = end - (end > first);
	for (uint64_t item = first; item < end && ctx->alive && ctx->id == id; item++)
		sim_wait_item(ctx, item + 1);
	if (ctx->alive)
		sim_pools_settle(ctx->gpu);
}

/* The legacy stream waits for all others and they for it; the others differ in lane. */
static struct sim_item item_for(CUstream stream, const struct sim_queue *q, uint64_t cost_ns, uint64_t after)
{
	struct sim_item item = { .cost_ns = cost_ns, .after = after };

	if (q->lanes < 2)
		return item;
	item.lane = (uint32_t)(stream->id % q->lanes);
	item.barrier = stream == stream->ctx->legacy;
	if (!(stream->flags & CU_STREAM_NON_BLOCKING) && q->last_barrier > after)
		item.after = q->last_barrier;
	return item;
}

CUresult sim_submit(CUstream stream, uint64_t cost_ns, CUevent mark)
{
	return sim_submit_after(stream, cost_ns, mark, 0);
}

/* Put one item at the end of the stream, to start after another one; blocks while the queue is full. */
CUresult sim_submit_after(CUstream stream, uint64_t cost_ns, CUevent mark, uint64_t after)
{
	CUcontext ctx = stream->ctx;
	uint64_t id = ctx->id;

	sim_machine_lock();
	for (;;) {
		sim_sweep(false);
		if (!ctx->alive || ctx->id != id || !sim_handle_is(stream, SIM_STREAM)) {
			sim_machine_unlock();
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
		}
		catch_up(ctx);
		if (sim_machine->gpus[ctx->gpu].lost) {
			sim_machine_unlock();
			return CUDA_ERROR_UNKNOWN;
		}
		if (queue_of(ctx)->tail - queue_of(ctx)->head < SIM_QUEUE_DEPTH)
			break;
		doze(ctx, queue_of(ctx)->head + 1);
	}
	struct sim_queue *q = queue_of(ctx);
	if (mark && !sim_handle_is(mark, SIM_EVENT))
		mark = NULL; /* destroyed by another thread meanwhile */
	ctx->marks[q->tail % SIM_QUEUE_DEPTH] = mark;
	if (mark) {
		mark->on = ctx;
		mark->item = q->tail;
		mark->recorded = true;
		mark->done = false;
	}
	sim_queue_append(q, item_for(stream, q, cost_ns, after));
	stream->last = q->tail;
	catch_up(ctx);
	sim_machine_unlock();
	return CUDA_SUCCESS;
}

static void open_gate(struct host_call *call)
{
	if (!call->ctx->alive)
		return;
	sim_machine_lock();
	sim_gpu_advance(call->ctx->gpu, sim_now());
	sim_item_at(queue_of(call->ctx), call->item)->cost_ns = 0;
	catch_up(call->ctx);
	sim_machine_unlock();
}

static void *host_loop(void *unused)
{
	(void)unused;
	sim_lock();
	for (;;) {
		struct host_call *call = host_calls;
		if (!call) {
			host_running = false;
			break;
		}
		sim_wait_item(call->ctx, call->item);
		sim_unlock();
		call->run(call->user);
		sim_lock();
		open_gate(call);
		host_calls = call->next;
		if (!host_calls)
			host_tail = &host_calls;
		free(call);
	}
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

CUresult sim_submit_host(CUstream stream, void (*run)(void *), void *user)
{
	struct host_call *call = malloc(sizeof(*call));

	if (!call)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = sim_submit(stream, SIM_GATE_SHUT, NULL);
	if (result) {
		free(call);
		return result;
	}
	*call = (struct host_call){ .ctx = stream->ctx, .item = stream->last - 1, .run = run, .user = user };
	*host_tail = call;
	host_tail = &call->next;
	return start_host_thread() ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
