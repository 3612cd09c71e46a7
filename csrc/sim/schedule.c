/* SPDX-License-Identifier: Apache-2.0
 *
 * Who has the GPU when.  The card serves one queue (context) at a time, for a slice, and then the next
 * one with work, equally per context whoever owns it; a queue that runs dry gives way at once.  No
 * process does this in the background: whoever looks first works the schedule out up to now, and since
 * every submission looks first, nothing that was worked out ever has to be taken back.
 *
 * A process that dies keeps its share until the next sweep, a few milliseconds at most while anybody waits.
 */
#include <string.h>

#include "machine.h"

bool sim_item_done(const struct sim_queue *q, uint64_t item)
{
	return item < q->head || sim_item_at(q, item)->done;
}

/* Whether the first item of a lane could run now. */
static bool ready(const struct sim_queue *q, uint32_t lane)
{
	if (!sim_lane_busy(q, lane))
		return false;
	uint64_t at = q->lane_head[lane];
	const struct sim_item *item = sim_item_at(q, at);
	if (item->cost_ns == SIM_GATE_SHUT || (item->barrier && q->head < at))
		return false;
	return !item->after || sim_item_done(q, item->after - 1);
}

static bool runnable(const struct sim_queue *q, uint32_t gpu)
{
	if (!q->used || q->gpu != gpu || q->head == q->tail)
		return false;
	for (uint32_t lane = 0; lane < q->lanes; lane++)
		if (ready(q, lane))
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
}

/* The next queue with work after `from`, itself last; SIM_NO_QUEUE if there is none. */
static uint32_t next_runnable(uint32_t gpu, uint32_t from)
{
	uint32_t limit = sim_machine->queue_limit;
	uint32_t start = from == SIM_NO_QUEUE ? 0 : from;

	for (uint32_t i = 1; i <= limit; i++) {
		uint32_t at = (start + i) % limit;
		if (runnable(&sim_machine->queues[at], gpu))
			return at;
	}
	return SIM_NO_QUEUE;
}

/* Add busy time to the bucket of history that `end` lies in. */
static void note_busy(uint64_t *ids, uint64_t *wide, uint32_t *narrow, uint64_t end, uint64_t ns)
{
	uint64_t id = end / SIM_BUCKET_NS;
	uint32_t at = (uint32_t)(id % SIM_BUCKETS);

	if (ids[at] != id) {
		ids[at] = id;
		if (wide)
			wide[at] = 0;
		else
			narrow[at] = 0;
	}
	if (wide)
		wide[at] += ns;
	else
		narrow[at] += (uint32_t)ns;
}

static void account(uint32_t gpu, struct sim_queue *q, uint64_t start, uint64_t ns)
{
	struct sim_gpu *g = &sim_machine->gpus[gpu];
	struct sim_proc *p = &sim_machine->procs[q->proc];

	g->busy_ns += ns;
	p->gpu_ns[gpu] += ns;
	if (!p->first_busy_ns[gpu])
		p->first_busy_ns[gpu] = start;
	while (ns) {
		uint64_t left = SIM_BUCKET_NS - start % SIM_BUCKET_NS;
		uint64_t part = ns < left ? ns : left;
		note_busy(g->bucket_id, g->bucket_busy_ns, NULL, start, part);
		note_busy(p->bucket_id[gpu], NULL, p->bucket_busy_ns[gpu], start, part);
		start += part;
		ns -= part;
	}
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

static void finish(struct sim_queue *q, uint32_t lane, uint64_t when)
{
	struct sim_item *item = sim_item_at(q, q->lane_head[lane]);

	item->done_ns = when;
	item->done = true;
	pass_done(q, lane);
}

/* After a process died in the middle of it: the queues of the living may lag behind their items. */
void sim_queues_repair(void)
{
	for (uint32_t i = 0; i < sim_machine->queue_limit; i++)
		for (uint32_t lane = 0; sim_machine->queues[i].used && lane < sim_machine->queues[i].lanes; lane++)
			pass_done(&sim_machine->queues[i], lane);
}

/* Serve the queue at hand until one of its items, its slice or the time at hand ends; what is ready in
 * different lanes runs at once and at full speed.  False if nothing moved. */
static bool serve(uint32_t gpu, struct sim_queue *q, uint64_t now)
{
	struct sim_gpu *g = &sim_machine->gpus[gpu];
	uint64_t run = (now < g->slice_end_ns ? now : g->slice_end_ns) - g->clock_ns;
	uint32_t lanes[SIM_MAX_LANES], n = 0;
	bool moved;

	for (uint32_t lane = 0; lane < q->lanes; lane++) {
		if (!ready(q, lane))
			continue;
		const struct sim_item *item = sim_item_at(q, q->lane_head[lane]);
		if (item->cost_ns - item->progress_ns < run)
			run = item->cost_ns - item->progress_ns;
		lanes[n++] = lane;
	}
	moved = run > 0;
	if (run)
		account(gpu, q, g->clock_ns, run);
	g->clock_ns += run;
	for (uint32_t i = 0; i < n; i++) {
		struct sim_item *item = sim_item_at(q, q->lane_head[lanes[i]]);
		item->progress_ns += run;
		if (item->progress_ns < item->cost_ns)
			continue;
		finish(q, lanes[i], g->clock_ns);
		moved = true;
	}
	return moved;
}

void sim_gpu_advance(uint32_t gpu, uint64_t now)
{
	struct sim_gpu *g = &sim_machine->gpus[gpu];

	if (now < g->clock_ns)
		return;
	for (;;) {
		bool holding = g->serving != SIM_NO_QUEUE && runnable(&sim_machine->queues[g->serving], gpu);
		if (!holding || g->clock_ns >= g->slice_end_ns) {
			g->serving = next_runnable(gpu, g->serving);
			g->slice_end_ns = g->clock_ns + g->model.timeslice_ns;
		}
		if (g->serving == SIM_NO_QUEUE)
			break;
		if (!serve(gpu, &sim_machine->queues[g->serving], now))
			break;
	}
	if (g->clock_ns < now)
		g->clock_ns = now;
}

bool sim_gpu_contended(const struct sim_queue *q)
{
	uint32_t me = (uint32_t)(q - sim_machine->queues);
	uint32_t other = next_runnable(q->gpu, me);

	return other != SIM_NO_QUEUE && other != me;
}

static uint64_t left_of(const struct sim_item *item)
{
	return item->cost_ns == SIM_GATE_SHUT ? 0 : item->cost_ns - item->progress_ns;
}

/* What the lane of `item` has to do up to and with it; gates count as nothing. */
static uint64_t work_before(const struct sim_queue *q, uint64_t item)
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

/* How long at most the queue being served keeps the card from the others. */
static uint64_t hold_of(const struct sim_gpu *g)
{
	const struct sim_queue *q = &sim_machine->queues[g->serving];
	uint64_t slice = g->slice_end_ns - g->clock_ns, most = 0;

	for (uint32_t lane = 0; lane < q->lanes; lane++) {
		uint64_t work = sim_lane_busy(q, lane) ? work_before(q, q->lane_tail[lane] - 1) : 0;
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

/* Percent of the second before `now` that is in the history. */
static uint32_t average(const uint64_t *ids, const uint64_t *wide, const uint32_t *narrow, uint64_t now, uint32_t buckets)
{
	uint64_t last = now / SIM_BUCKET_NS, sum = 0;

	for (uint32_t i = 1; i <= buckets && i <= last; i++) {
		uint32_t at = (uint32_t)((last - i) % SIM_BUCKETS);
		if (ids[at] == last - i)
			sum += wide ? wide[at] : narrow[at];
	}
	return (uint32_t)(sum * 100 / (buckets * SIM_BUCKET_NS));
}

uint32_t sim_gpu_utilisation(uint32_t gpu, uint64_t now)
{
	const struct sim_gpu *g = &sim_machine->gpus[gpu];

	return average(g->bucket_id, g->bucket_busy_ns, NULL, now, 6);
}

/* Slow on purpose: the average of the last four seconds, as the real figure creeps up. */
uint32_t sim_proc_utilisation(uint32_t slot, uint32_t gpu, uint64_t now)
{
	const struct sim_proc *p = &sim_machine->procs[slot];

	return average(p->bucket_id[gpu], NULL, p->bucket_busy_ns[gpu], now, 24);
}
