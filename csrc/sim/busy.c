/* SPDX-License-Identifier: Apache-2.0
 *
 * When cards were busy, and for which process: sums, and a short history for utilisation figures.
 */
#include "machine.h"

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

void sim_account(const struct sim_queue *q, uint64_t start, uint64_t ns)
{
	uint32_t gpu = q->gpu;
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
