/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues and their lanes: what may run now, what comes next, and what is done.
 */
#include "machine.h"

bool sim_item_done(const struct sim_queue *q, uint64_t item)
{
	return item < q->head || sim_item_at(q, item)->done;
}

/* Whether all items before `at` are done that a barrier, or a fence, waits for. */
static bool alone(const struct sim_queue *q, uint64_t at, bool fence)
{
	for (uint64_t i = q->head; i < at; i++) {
		const struct sim_item *item = sim_item_at(q, i);
		if (!item->done && (fence || !item->apart))
			return false;
	}
	return true;
}

/* A context that has ended has nothing left to wait for. */
static bool other_done(const struct sim_item *item)
{
	const struct sim_queue *q = &sim_machine->queues[item->other];

	return !item->other_after || !q->used || q->id != item->other_id || sim_item_done(q, item->other_after - 1);
}

bool sim_item_reached(const struct sim_queue *q, uint64_t at)
{
	const struct sim_item *item = sim_item_at(q, at);

	if (q->lane_head[item->lane] != at || (item->barrier && !alone(q, at, item->fence)))
		return false;
	if (!other_done(item))
		return false;
	return (!item->after || sim_item_done(q, item->after - 1)) && (!item->behind || sim_item_done(q, item->behind - 1));
}

/* Whether the first item of a lane could run now. */
bool sim_lane_ready(const struct sim_queue *q, uint32_t lane)
{
	if (!sim_lane_busy(q, lane))
		return false;
	uint64_t at = q->lane_head[lane];
	const struct sim_item *item = sim_item_at(q, at);
	if (item->cost_ns == SIM_GATE_SHUT || (item->op == SIM_WAIT && !sim_item_met(item)))
		return false;
	return sim_item_reached(q, at);
}

bool sim_queue_runnable(const struct sim_queue *q, uint32_t gpu)
{
	if (!q->used || q->gpu != gpu || q->head == q->tail)
		return false;
	for (uint32_t lane = 0; lane < q->lanes; lane++)
		if (sim_lane_ready(q, lane))
			return true;
	return false;
}

void sim_queue_append(struct sim_queue *q, struct sim_item item)
{
	uint64_t at = q->tail++;
	uint32_t lane = item.lane;

	*sim_item_at(q, at) = item;
	if (sim_lane_busy(q, lane))
		sim_item_at(q, q->lane_tail[lane] - 1)->next = at;
	else
		q->lane_head[lane] = at;
	q->lane_tail[lane] = at + 1;
	if (item.barrier)
		q->last_barrier = at + 1;
	if (item.fence)
		q->last_fence = at + 1;
}

/* The next queue with work after `from`, itself last; SIM_NO_QUEUE if there is none. */
uint32_t sim_next_runnable(uint32_t gpu, uint32_t from)
{
	uint32_t limit = sim_machine->queue_limit;
	uint32_t start = from == SIM_NO_QUEUE ? 0 : from;

	for (uint32_t i = 1; i <= limit; i++) {
		uint32_t at = (start + i) % limit;
		if (sim_queue_runnable(&sim_machine->queues[at], gpu))
			return at;
	}
	return SIM_NO_QUEUE;
}

/* Let the heads pass what is done. */
static void pass_done(struct sim_queue *q, uint32_t lane)
{
	while (sim_lane_busy(q, lane) && sim_item_at(q, q->lane_head[lane])->done) {
		uint64_t at = q->lane_head[lane];
		q->lane_head[lane] = at + 1 < q->lane_tail[lane] ? sim_item_at(q, at)->next : q->lane_tail[lane];
	}
	while (q->head < q->tail && sim_item_at(q, q->head)->done)
		q->head++;
}

void sim_lane_finish(struct sim_queue *q, uint32_t lane, uint64_t when)
{
	struct sim_item *item = sim_item_at(q, q->lane_head[lane]);

	sim_item_effect(item);
	item->done_ns = when;
	item->done = true;
	pass_done(q, lane);
}

static void repair(struct sim_queue *q)
{
	for (uint32_t lane = 0; lane < q->lanes; lane++) {
		pass_done(q, lane);
		if (!sim_lane_busy(q, lane))
			continue;
		struct sim_item *item = sim_item_at(q, q->lane_head[lane]);
		if (item->op == SIM_RENDEZVOUS && item->arrived > sim_machine->flags[item->flag].changes)
			item->arrived = 0; /* it was about to */
	}
}

/* After a process died in the middle of it: the queues of the living may lag behind their items. */
void sim_queues_repair(void)
{
	for (uint32_t i = 0; i < sim_machine->queue_limit; i++)
		if (sim_machine->queues[i].used)
			repair(&sim_machine->queues[i]);
}
