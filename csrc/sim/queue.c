/* SPDX-License-Identifier: Apache-2.0
 *
 * Submitting work and waiting for it.  Items go into the context's queue of the shared machine; events
 * that mark an item are stamped (harvested) by their own process before the item's place is used again.
 */
#include "sim.h"

#define GATE_POLL_NS 100000ull
#define LANE_POLL_NS 20000ull /* while an item waits for one of another lane */

struct sim_queue *sim_queue_of(CUcontext ctx)
{
	return &sim_machine->queues[ctx->queue];
}

/* Both locks held: bring the card up to now and stamp the events whose items are done. */
void sim_catch_up(CUcontext ctx)
{
	struct sim_queue *q = sim_queue_of(ctx);

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
		if (!item->done && (item->cost_ns == SIM_GATE_SHUT || sim_item_spins(item) || item->op == SIM_WAIT || item->other_after))
			return GATE_POLL_NS;
	}
	return poll;
}

/* Both locks held on entry, neither meanwhile: sleep until item `end - 1` may be done. */
static void doze(CUcontext ctx, uint64_t end)
{
	const struct sim_queue *q = sim_queue_of(ctx);
	uint64_t now = sim_now(), until = sim_gpu_forecast(q, end - 1), poll = poll_ns(q, end);

	if (until < now + poll)
		until = now + poll;
	if (until > now + SIM_LOOK_AGAIN_NS)
		until = now + SIM_LOOK_AGAIN_NS;
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
		sim_catch_up(ctx);
		if (!end || sim_item_done(sim_queue_of(ctx), end - 1))
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
	sim_catch_up(ctx);
	bool done = !end || sim_item_done(sim_queue_of(ctx), end - 1);
	sim_machine_unlock();
	return done;
}

/* One past the first item below `end` that is not done; 0 if there is none. */
static uint64_t first_left(CUcontext ctx, uint64_t end, bool apart_too)
{
	uint64_t left = 0;

	sim_machine_lock();
	sim_catch_up(ctx);
	struct sim_queue *q = sim_queue_of(ctx);
	for (uint64_t i = q->head; i < end && !left; i++)
		if (!sim_item_at(q, i)->done && (apart_too || !sim_item_at(q, i)->apart))
			left = i + 1;
	sim_machine_unlock();
	return left;
}

static uint64_t end_of(CUcontext ctx)
{
	sim_machine_lock();
	uint64_t end = sim_queue_of(ctx)->tail;
	sim_machine_unlock();
	return end;
}

/* The last first: most often all is done then. */
static void wait_streams(CUcontext ctx, bool apart_too)
{
	uint64_t id = ctx->id, end = end_of(ctx), left;

	if (apart_too)
		sim_wait_item(ctx, end);
	while (ctx->alive && ctx->id == id && (left = first_left(ctx, end, apart_too)))
		sim_wait_item(ctx, left);
}

void sim_wait_context(CUcontext ctx)
{
	wait_streams(ctx, true);
	if (ctx->alive)
		sim_pools_settle(ctx->gpu);
}

void sim_wait_legacy(CUcontext ctx)
{
	if (ctx->legacy->last)
		sim_wait_item(ctx, ctx->legacy->last);
	wait_streams(ctx, false);
}

bool sim_legacy_done(CUcontext ctx)
{
	return sim_done(ctx, ctx->alive ? ctx->legacy->last : 0) && (!ctx->alive || !first_left(ctx, end_of(ctx), false));
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
	item->behind = item->apart ? q->last_fence : q->last_barrier;
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
		sim_catch_up(ctx);
		if (sim_machine->gpus[ctx->gpu].lost)
			return CUDA_ERROR_UNKNOWN;
		if (sim_queue_of(ctx)->tail - sim_queue_of(ctx)->head < SIM_QUEUE_DEPTH)
			return CUDA_SUCCESS;
		doze(ctx, sim_queue_of(ctx)->head + 1);
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
	struct sim_queue *q = sim_queue_of(ctx);

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
	sim_catch_up(ctx);
}

/* Put one item at the end of the stream; blocks while the queue is full. */
CUresult sim_submit_work(CUstream stream, const struct sim_work *work)
{
	struct sim_item item = work->item;

	sim_machine_lock();
	CUresult result = find_room(stream);
	if (!result)
		result = name_flags(stream->ctx, work, &item);
	if (!result && item.other_after)
		sim_card_waits(stream->ctx->gpu, sim_machine->queues[item.other].gpu);
	if (!result)
		put(stream, item, work->mark);
	sim_machine_unlock();
	return result;
}
