/* SPDX-License-Identifier: Apache-2.0
 *
 * Schedules the GPU.  The card serves one queue (context) at a time, for a slice, and then the next
 * one with work, equally per context, whatever its process.  A queue that runs empty yields at once.  No
 * background process does this: each reader first computes the schedule up to now.  Every submission reads
 * first, so a computed schedule never has to be undone.
 *
 * Cards that share flags are computed together, from one clock, in steps to the next event on any of them.
 *
 * A process that dies keeps its share until the next sweep, a few milliseconds at most while a process waits.
 */
#include "machine.h"

/* What a card is doing. */
struct turn {
	uint32_t gpu, n;
	struct sim_queue *q; /* NULL: nothing */
	uint32_t lanes[SIM_MAX_LANES];
	uint64_t left[SIM_MAX_LANES];
	bool moves[SIM_MAX_LANES];
};

static uint64_t concurrency(uint32_t gpu)
{
	return sim_machine->gpus[gpu].model.concurrency;
}

static struct sim_item *first_of(const struct turn *t, uint32_t i)
{
	return sim_item_at(t->q, t->q->lane_head[t->lanes[i]]);
}

/* What has begun goes on; else what was submitted first begins. */
static bool goes_before(const struct sim_queue *q, uint32_t lane, uint32_t other)
{
	bool begun = sim_item_at(q, q->lane_head[lane])->progress_ns, other_begun = sim_item_at(q, q->lane_head[other])->progress_ns;

	return begun != other_begun ? begun : q->lane_head[lane] < q->lane_head[other];
}

/* Of the lanes that are ready: all that spin, and of the others so many as may work at once. */
static void choose_lanes(struct turn *t)
{
	uint32_t working[SIM_MAX_LANES], n = 0;

	t->n = 0;
	for (uint32_t lane = 0; lane < t->q->lanes; lane++) {
		if (!sim_lane_ready(t->q, lane))
			continue;
		if (sim_item_spins(sim_item_at(t->q, t->q->lane_head[lane]))) {
			t->lanes[t->n++] = lane;
			continue;
		}
		uint32_t at = n++;
		for (; at > 0 && goes_before(t->q, lane, working[at - 1]); at--)
			working[at] = working[at - 1];
		working[at] = lane;
	}
	for (uint32_t i = 0; i < n && i < concurrency(t->gpu); i++)
		t->lanes[t->n++] = working[i];
}

/* No two cards keep step for long: the slices of neighbours differ by a 64th, so that they drift. */
static uint64_t slice_of(uint32_t gpu)
{
	return sim_machine->gpus[gpu].model.timeslice_ns * (64 + gpu % 8) / 64;
}

/* The queue at hand, or the next one at the end of its slice or work. */
static void choose(struct turn *t)
{
	struct sim_gpu *g = &sim_machine->gpus[t->gpu];
	bool holding = g->serving != SIM_NO_QUEUE && sim_queue_runnable(&sim_machine->queues[g->serving], t->gpu);

	if (!holding || g->clock_ns >= g->slice_end_ns) {
		g->serving = sim_next_runnable(t->gpu, g->serving);
		g->slice_end_ns = g->clock_ns + slice_of(t->gpu);
	}
	t->q = g->serving == SIM_NO_QUEUE ? NULL : &sim_machine->queues[g->serving];
	t->n = 0;
	if (t->q)
		choose_lanes(t);
}

static bool arrive(const struct turn *t)
{
	bool changed = false;

	for (uint32_t i = 0; i < t->n; i++)
		changed |= sim_item_arrive(first_of(t, i), sim_machine->gpus[t->gpu].clock_ns);
	return changed;
}

/* How long the card may go on like this: until an item or its slice ends. */
static uint64_t longest_step(struct turn *t)
{
	const struct sim_gpu *g = &sim_machine->gpus[t->gpu];
	uint64_t step = t->q ? g->slice_end_ns - g->clock_ns : UINT64_MAX;

	for (uint32_t i = 0; i < t->n; i++) {
		t->left[i] = sim_item_left(first_of(t, i), g->clock_ns, &t->moves[i]);
		if (t->left[i] < step)
			step = t->left[i];
	}
	return step;
}

static bool go_on(struct turn *t, uint64_t step)
{
	struct sim_gpu *g = &sim_machine->gpus[t->gpu];
	bool ended = false;

	if (step && t->q)
		sim_account(t->q, g->clock_ns, step);
	g->clock_ns += step;
	for (uint32_t i = 0; i < t->n; i++) {
		if (!t->moves[i])
			continue;
		first_of(t, i)->progress_ns += step;
		if (t->left[i] > step)
			continue;
		sim_lane_finish(t->q, t->lanes[i], g->clock_ns);
		ended = true;
	}
	return ended;
}

/* One step of all cards; false if that was the last one. */
static bool step_all(struct turn *turns, uint32_t n, uint64_t now)
{
	uint64_t step = now - sim_machine->gpus[turns[0].gpu].clock_ns;
	bool moved = false;

	for (uint32_t i = 0; i < n; i++)
		choose(&turns[i]);
	for (uint32_t i = 0; i < n; i++)
		moved |= arrive(&turns[i]);
	if (moved)
		return true; /* what waits for it may now be ready, also on the cards before */
	for (uint32_t i = 0; i < n; i++) {
		uint64_t most = longest_step(&turns[i]);
		if (most < step)
			step = most;
	}
	for (uint32_t i = 0; i < n; i++)
		moved |= go_on(&turns[i], step);
	return moved || sim_machine->gpus[turns[0].gpu].clock_ns < now;
}

void sim_gpu_advance(uint32_t gpu, uint64_t now)
{
	struct sim_machine *m = sim_machine;
	uint64_t group = m->gpus[gpu].together | 1ull << gpu, clock = 0;
	struct turn turns[SIM_MAX_GPUS];
	uint32_t n = 0;

	for (uint32_t i = 0; i < m->ngpus; i++) {
		if (!(group >> i & 1))
			continue;
		turns[n++].gpu = i;
		if (m->gpus[i].clock_ns > clock)
			clock = m->gpus[i].clock_ns;
	}
	if (now < clock)
		return;
	for (uint32_t i = 0; i < n; i++) /* they only differ if a process died on the way */
		m->gpus[turns[i].gpu].clock_ns = clock;
	while (step_all(turns, n, now))
		;
}

bool sim_gpu_contended(const struct sim_queue *q)
{
	uint32_t me = (uint32_t)(q - sim_machine->queues);
	uint32_t other = sim_next_runnable(q->gpu, me);

	return other != SIM_NO_QUEUE && other != me;
}

static uint64_t left_of(const struct sim_item *item)
{
	return item->cost_ns == SIM_GATE_SHUT || item->op == SIM_AWAIT ? 0 : item->cost_ns - item->progress_ns;
}

/* What the lane of `item` has to do up to and with it; gates count as nothing. */
static uint64_t lane_work(const struct sim_queue *q, uint64_t item)
{
	uint32_t lane = sim_item_at(q, item)->lane;
	uint64_t sum = 0;

	for (uint64_t at = q->lane_head[lane]; at < q->lane_tail[lane] && at <= item; at = sim_item_at(q, at)->next) {
		sum += left_of(sim_item_at(q, at));
		if (at + 1 == q->lane_tail[lane])
			break;
	}
	return sum;
}

/* What must be done up to and with `item`, at the least.  Where one lane works at a time and none waits for
 * anything, that is all that was submitted before. */
static uint64_t work_before(const struct sim_queue *q, uint64_t last)
{
	uint64_t sum = 0;

	if (concurrency(q->gpu) > 1)
		return lane_work(q, last);
	for (uint64_t at = q->head; at <= last; at++) {
		const struct sim_item *item = sim_item_at(q, at);
		if (item->done)
			continue;
		if (item->cost_ns == SIM_GATE_SHUT || item->other_after || (item->op != SIM_PLAIN && item->op != SIM_SET))
			return lane_work(q, last);
		sum += left_of(item);
	}
	return sum;
}

/* How long at most the queue being served keeps the card from the others. */
static uint64_t hold_of(const struct sim_gpu *g)
{
	const struct sim_queue *q = &sim_machine->queues[g->serving];
	uint64_t slice = g->slice_end_ns - g->clock_ns, most = q->head < q->tail ? work_before(q, q->tail - 1) : 0;

	for (uint32_t lane = 0; lane < q->lanes && concurrency(q->gpu) > 1; lane++) {
		uint64_t work = sim_lane_busy(q, lane) ? lane_work(q, q->lane_tail[lane] - 1) : 0;
		most = work > most ? work : most;
	}
	return slice < most ? slice : most;
}

/* A time before which `item` cannot be done if nothing is submitted or taken away meanwhile.  Under
 * contention only the slice at hand is counted in, and of what other lanes must do first nothing: the
 * waiter looks again then. */
uint64_t sim_gpu_forecast(const struct sim_queue *q, uint64_t item)
{
	const struct sim_gpu *g = &sim_machine->gpus[q->gpu];
	uint64_t when = g->clock_ns + work_before(q, item);

	if (g->serving != SIM_NO_QUEUE && g->serving != (uint32_t)(q - sim_machine->queues) && sim_gpu_contended(q))
		when += hold_of(g);
	return when;
}
