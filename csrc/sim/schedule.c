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

static const struct sim_item *head_of(const struct sim_queue *q)
{
	return sim_item_at(q, q->head);
}

static bool runnable(const struct sim_queue *q, uint32_t gpu)
{
	return q->used && q->gpu == gpu && q->head < q->tail && head_of(q)->cost_ns != SIM_GATE_SHUT;
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

/* Serve the queue at hand until its item, its slice or the time at hand ends. */
static void serve(uint32_t gpu, struct sim_queue *q, uint64_t now)
{
	struct sim_gpu *g = &sim_machine->gpus[gpu];
	struct sim_item *item = sim_item_at(q, q->head);
	uint64_t run = item->cost_ns - q->progress_ns;

	if (run > now - g->clock_ns)
		run = now - g->clock_ns;
	if (run > g->slice_end_ns - g->clock_ns)
		run = g->slice_end_ns - g->clock_ns;
	if (run)
		account(gpu, q, g->clock_ns, run);
	g->clock_ns += run;
	q->progress_ns += run;
	if (q->progress_ns == item->cost_ns) {
		item->done_ns = g->clock_ns;
		q->progress_ns = 0;
		q->head++;
	}
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
		struct sim_queue *q = &sim_machine->queues[g->serving];
		if (g->clock_ns >= now && head_of(q)->cost_ns > q->progress_ns)
			break;
		serve(gpu, q, now);
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

/* The work of `q` up to and with `item`; gates count as nothing. */
static uint64_t work_before(const struct sim_queue *q, uint64_t item)
{
	uint64_t sum = 0;

	for (uint64_t i = q->head; i <= item && i < q->tail; i++) {
		uint64_t cost = sim_item_at(q, i)->cost_ns;
		sum += cost == SIM_GATE_SHUT ? 0 : cost;
	}
	return sum > q->progress_ns ? sum - q->progress_ns : 0;
}

/* A time before which `item` cannot be done if nothing is submitted or taken away meanwhile.  Under
 * contention only the slice at hand is counted in: the waiter looks again then. */
uint64_t sim_gpu_forecast(const struct sim_queue *q, uint64_t item)
{
	const struct sim_gpu *g = &sim_machine->gpus[q->gpu];
	uint64_t when = g->clock_ns + work_before(q, item);

	if (sim_gpu_contended(q) && g->serving != (uint32_t)(q - sim_machine->queues)) {
		const struct sim_queue *other = g->serving == SIM_NO_QUEUE ? NULL : &sim_machine->queues[g->serving];
		uint64_t hold = g->slice_end_ns - g->clock_ns;
		uint64_t busy = other ? work_before(other, other->tail) : 0;
		when += hold < busy ? hold : busy;
	}
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
