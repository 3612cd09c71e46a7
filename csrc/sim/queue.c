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
	sim_words_catch_up(ctx);
}

/* Whether items below `end` wait for what no forecast knows. */
static uint64_t poll_ns(const struct sim_queue *q, uint64_t end)
{
	uint64_t poll = sim_model_of(q->gpu)->concurrency > 1 || sim_machine->flag_limit ? LANE_POLL_NS : 0;

	for (uint64_t i = q->head; i < end; i++) {
		const struct sim_item *item = sim_item_at(q, i);
		if (!item->done && (item->cost_ns == SIM_GATE_SHUT || sim_item_spins(item) || item->op == SIM_WAIT))
			return GATE_POLL_NS;
	}
	return poll;
}

/* Both locks held on entry, neither meanwhile: sleep until item `end - 1` may be done. */
static void doze(CUcontext ctx, uint64_t end)
{
	const struct sim_queue *q = queue_of(ctx);
	uint64_t now = sim_now(), until = sim_gpu_forecast(q, end - 1), poll = poll_ns(q, end);

	if (until < now + poll)
		until = now + poll;
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

/* One past the first item that is not done, if that is below `end`; else 0. */
static uint64_t first_left(CUcontext ctx, uint64_t end)
{
	sim_machine_lock();
	catch_up(ctx);
	uint64_t head = queue_of(ctx)->head;
	sim_machine_unlock();
	return head < end ? head + 1 : 0;
}

void sim_wait_context(CUcontext ctx)
{
	uint64_t id = ctx->id, left;

	sim_machine_lock();
	uint64_t end = queue_of(ctx)->tail;
	sim_machine_unlock();
	sim_wait_item(ctx, end);
	while (ctx->alive && ctx->id == id && (left = first_left(ctx, end)))
		sim_wait_item(ctx, left);
	if (ctx->alive)
		sim_pools_settle(ctx->gpu);
}

/* A stream keeps its lane while it has work there; then it looks for one that is empty. */
static uint32_t lane_for(CUstream stream, const struct sim_queue *q)
{
	uint32_t first = (uint32_t)(stream->id % q->lanes);

	if (stream->last && !sim_item_done(q, stream->last - 1))
		return stream->lane;
	for (uint32_t i = 0; i < q->lanes; i++)
		if (!sim_lane_busy(q, (first + i) % q->lanes))
			return (first + i) % q->lanes;
	return first;
}

/* The legacy stream waits for all others and they for it, but for those that were made not to. */
static void place(CUstream stream, const struct sim_queue *q, struct sim_item *item)
{
	item->apart = stream->flags & CU_STREAM_NON_BLOCKING;
	item->barrier = stream == stream->ctx->legacy;
	item->lane = lane_for(stream, q);
	if (!item->apart && q->last_barrier > item->after)
		item->after = q->last_barrier;
}

CUresult sim_submit(CUstream stream, uint64_t cost_ns, CUevent mark)
{
	return sim_submit_work(stream, &(struct sim_work){ .item = { .cost_ns = cost_ns }, .mark = mark });
}

/* Both locks held: wait for a place in the queue. */
static CUresult find_room(CUstream stream)
{
	CUcontext ctx = stream->ctx;
	uint64_t id = ctx->id;

	for (;;) {
		sim_sweep(false);
		if (!ctx->alive || ctx->id != id || !sim_handle_is(stream, SIM_STREAM))
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
		catch_up(ctx);
		if (sim_machine->gpus[ctx->gpu].lost)
			return CUDA_ERROR_UNKNOWN;
		if (queue_of(ctx)->tail - queue_of(ctx)->head < SIM_QUEUE_DEPTH)
			return CUDA_SUCCESS;
		doze(ctx, queue_of(ctx)->head + 1);
	}
}

static CUresult name_flags(CUcontext ctx, const struct sim_work *work, struct sim_item *item)
{
	item->flag = work->word ? sim_word_flag(work->word, ctx->gpu) : SIM_NO_FLAG;
	item->bails = work->bails ? sim_word_flag(work->bails, ctx->gpu) : SIM_NO_FLAG;
	bool all = (item->flag != SIM_NO_FLAG || !work->word) && (item->bails != SIM_NO_FLAG || !work->bails);
	return all ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void put(CUstream stream, struct sim_item item, CUevent mark)
{
	CUcontext ctx = stream->ctx;
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
	place(stream, q, &item);
	sim_queue_append(q, item);
	stream->last = q->tail;
	stream->lane = item.lane;
	catch_up(ctx);
}

/* Put one item at the end of the stream; blocks while the queue is full. */
CUresult sim_submit_work(CUstream stream, const struct sim_work *work)
{
	struct sim_item item = work->item;

	sim_machine_lock();
	CUresult result = find_room(stream);
	if (!result)
		result = name_flags(stream->ctx, work, &item);
	if (!result)
		put(stream, item, work->mark);
	sim_machine_unlock();
	return result;
}

static void open_gate(struct host_call *call)
{
	if (!call->ctx->alive || call->ctx->id != call->ctx_id)
		return;
	sim_machine_lock();
	sim_gpu_advance(call->ctx->gpu, sim_now());
	sim_item_at(queue_of(call->ctx), call->item)->cost_ns = 0;
	catch_up(call->ctx);
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
		catch_up(ctx);
		reached = sim_item_reached(queue_of(ctx), call->item);
		if (!reached && sim_gpu_forecast(queue_of(ctx), call->item) > when)
			when = sim_gpu_forecast(queue_of(ctx), call->item);
	}
	sim_machine_unlock();
	if (reached && (!call->ready || call->ready(call->user)))
		return true;
	if (when > now + LOOK_AGAIN_NS)
		when = now + LOOK_AGAIN_NS;
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
