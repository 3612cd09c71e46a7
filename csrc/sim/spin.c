/* SPDX-License-Identifier: Apache-2.0
 *
 * Work that waits for other work.  A waiting kernel has the card for its slices, as any other, and gets
 * nowhere until its flag has come far enough.  After that a rendezvous takes the time of a transfer, and
 * gets on only while each card that has an unfinished part of it serves one: data moves while both ends run.
 */
#include "machine.h"

static uint64_t lowest_bit(uint64_t mask)
{
	return mask & (~mask + 1);
}

/* The bits that are meant, as a number. */
static uint64_t seen(const struct sim_item *item)
{
	return (sim_flag_value(item->flag) & item->mask) / lowest_bit(item->mask);
}

static bool came_round(uint64_t now, uint64_t value, bool wide)
{
	return wide ? (int64_t)(now - value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)value) >= 0;
}

bool sim_item_met(const struct sim_item *item)
{
	uint64_t now = seen(item), all = item->mask / lowest_bit(item->mask);

	switch (item->how) {
	case SIM_GEQ: return came_round(now, item->value, all == UINT64_MAX);
	case SIM_EQ: return now == item->value;
	case SIM_AND: return now & item->value;
	case SIM_NOR: return ~(now | item->value) & all;
	default: return now >= item->value;
	}
}

bool sim_item_arrive(struct sim_item *item, uint64_t clock_ns)
{
	if (!item->began_ns)
		item->began_ns = clock_ns;
	if (item->op != SIM_RENDEZVOUS || item->arrived)
		return false;
	item->arrived = sim_machine->flags[item->flag].changes + 1;
	sim_flag_write(item->flag, sim_flag_value(item->flag) + 1, UINT64_MAX);
	return true;
}

/* Whether a lane's first item is a part of the same rendezvous. */
static bool part_of(const struct sim_item *item, const struct sim_queue *q, uint32_t lane)
{
	if (!sim_lane_busy(q, lane))
		return false;
	const struct sim_item *other = sim_item_at(q, q->lane_head[lane]);
	return other->op == SIM_RENDEZVOUS && other->flag == item->flag && other->value == item->value && other->arrived;
}

static bool all_run(const struct sim_item *item)
{
	uint64_t wanted = 0, running = 0;

	for (uint32_t i = 0; i < sim_machine->queue_limit; i++) {
		const struct sim_queue *q = &sim_machine->queues[i];
		if (!q->used || q->head == q->tail)
			continue;
		for (uint32_t lane = 0; lane < q->lanes; lane++) {
			if (!part_of(item, q, lane))
				continue;
			wanted |= 1ull << q->gpu;
			if (sim_machine->gpus[q->gpu].serving == i)
				running |= 1ull << q->gpu;
		}
	}
	return wanted == running;
}

static bool gave_up(const struct sim_item *item, uint64_t clock_ns)
{
	return item->limit_ns && clock_ns - item->began_ns >= item->limit_ns;
}

uint64_t sim_item_left(const struct sim_item *item, uint64_t clock_ns, bool *moves)
{
	*moves = true;
	if (item->op == SIM_AWAIT && !sim_item_met(item)) {
		if (gave_up(item, clock_ns))
			return 0;
		*moves = false;
		return item->limit_ns ? item->began_ns + item->limit_ns - clock_ns : UINT64_MAX;
	}
	if (item->op == SIM_RENDEZVOUS && !(sim_item_met(item) && all_run(item))) {
		*moves = false;
		return UINT64_MAX;
	}
	return item->cost_ns - item->progress_ns;
}

bool sim_item_spins(const struct sim_item *item)
{
	return item->op == SIM_AWAIT || item->op == SIM_RENDEZVOUS;
}

void sim_item_effect(const struct sim_item *item)
{
	if (item->op == SIM_SET)
		sim_flag_write(item->flag, item->value * lowest_bit(item->mask), item->mask);
	if (item->op == SIM_AWAIT && item->bails != SIM_NO_FLAG && !sim_item_met(item))
		sim_flag_write(item->bails, sim_flag_value(item->bails) + 1, UINT64_MAX);
}
