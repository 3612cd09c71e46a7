/* SPDX-License-Identifier: Apache-2.0
 *
 * The costs of launches.  A fixed table without locks: an entry is claimed by its key and never moves, so that any
 * thread may hold a pointer to it.
 */
#include "time/types.h"

enum { PROBES = 32, FIRST_SAMPLES = 4, MAX_SAMPLE_WEIGHT = 32, IN_A_ROW = 8, LONG_NS = 1000000, MEDIUM_NS = 100000 };

struct gl_cost *gl_cost_of(struct gl_meter *m, uint64_t key)
{
	if (key == 0)
		key = 1;
	for (uint32_t i = 0; i < PROBES; i++) {
		struct gl_cost *c = &m->cost[(key + i) % GL_COSTS];
		uint64_t seen = gl_load_acquire(&c->key);
		if (seen == 0 && __atomic_compare_exchange_n(&c->key, &seen, key, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return c;
		if (seen == key)
			return c;
	}
	return &m->overflow;
}

static void learned(struct gl_cost *cost, uint64_t ns)
{
	gl_store_relaxed(&cost->cost_ns, ns);
	gl_store_relaxed(&cost->samples, gl_load_relaxed(&cost->samples) + 1);
	gl_store_relaxed(&cost->unsampled, 0);
}

/* True if the launches now take a different time, by their arguments.  The mean would take long to follow. */
static bool is_another(struct gl_cost *cost, uint64_t ns)
{
	uint64_t old = gl_load_relaxed(&cost->cost_ns);
	int16_t odd = gl_load_relaxed(&cost->odd);
	if (!gl_load_relaxed(&cost->sure))
		odd = 0;
	else if (ns > 2 * old)
		odd = odd > 0 ? (int16_t)(odd + 1) : 1;
	else if (ns < old / 2)
		odd = odd < 0 ? (int16_t)(odd - 1) : -1;
	else
		odd = 0;
	bool another = odd >= IN_A_ROW || odd <= -IN_A_ROW;
	gl_store_relaxed(&cost->odd, another ? (int16_t)0 : odd);
	return another;
}

uint64_t gl_cost_learn(struct gl_cost *cost, uint64_t ns)
{
	uint16_t samples = is_another(cost, ns) ? 0 : gl_load_relaxed(&cost->sure);
	uint64_t old = gl_load_relaxed(&cost->cost_ns);
	/* A plain mean at first, later a moving one that follows slow changes.  Its weight is small, because arguments
	 * may make every launch differ, and charges depend on the mean. */
	int64_t weight = samples < MAX_SAMPLE_WEIGHT ? samples + 1 : MAX_SAMPLE_WEIGHT;
	gl_store_relaxed(&cost->sure, (uint16_t)weight);
	learned(cost, samples == 0 ? ns : (uint64_t)((int64_t)old + ((int64_t)ns - (int64_t)old) / weight));
	return ns;
}

uint64_t gl_cost_learn_most(struct gl_cost *cost, uint64_t ns)
{
	uint64_t old = gl_load_relaxed(&cost->cost_ns), now = gl_load_relaxed(&cost->samples) && old < ns ? old : ns;
	learned(cost, now);
	return now;
}

/* Before the first sure sample, the true cost is near the lower end of what was measured.  After it, unsure samples are
 * ignored: a short one may be of a launch with other arguments. */
uint64_t gl_cost_learn_unsure(struct gl_cost *cost, uint64_t ns)
{
	uint64_t old = gl_load_relaxed(&cost->cost_ns), now = old;
	if (gl_load_relaxed(&cost->samples) == 0)
		now = ns;
	else if (gl_load_relaxed(&cost->sure) == 0)
		now = ns < old ? old - (old - ns) / 2 : old + (ns - old) / 64;
	learned(cost, now);
	return now < ns ? now : ns;
}

static uint32_t random_below(uint32_t limit)
{
	static __thread uint32_t state;
	if (!state)
		state = (uint32_t)(uintptr_t)&state ^ 0x9e3779b9u;
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state % limit;
}

/* A sample costs the host some us (two events to record, query and read).  So samples are rarer for cheap launches and
 * for well-known costs.  They come at random, so as not to fall in step with a program that repeats itself. */
static uint32_t interval(const struct gl_cost *cost)
{
	uint32_t samples = gl_load_relaxed(&cost->samples);
	uint64_t ns = gl_load_relaxed(&cost->cost_ns);
	if (samples < FIRST_SAMPLES || ns > LONG_NS)
		return 1;
	if (ns > MEDIUM_NS)
		return 8;
	return samples < 32 ? 32 : samples < 128 ? 128 : 512;
}

bool gl_cost_wants_sample(struct gl_cost *cost)
{
	uint32_t left = gl_load_relaxed(&cost->countdown);
	if (GL_LIKELY(left > 0)) {
		gl_store_relaxed(&cost->countdown, left - 1);
		return false;
	}
	uint32_t n = interval(cost);
	gl_store_relaxed(&cost->countdown, n == 1 ? 0 : n / 2 + random_below(n));
	return true;
}

void gl_costs_forget(void)
{
	struct gl_meter *m = gl_self.meter;
	for (uint32_t i = 0; m && i < GL_COSTS; i++)
		if (gl_load_relaxed(&m->cost[i].key)) {
			gl_store_relaxed(&m->cost[i].samples, 0);
			gl_store_relaxed(&m->cost[i].sure, (uint16_t)0);
			gl_store_relaxed(&m->cost[i].countdown, 0);
		}
}

void gl_cost_forget(uint64_t key)
{
	struct gl_meter *m = gl_self.meter;
	if (!m)
		return;
	struct gl_cost *c = gl_cost_of(m, key);
	gl_store_relaxed(&c->samples, 0);
	gl_store_relaxed(&c->sure, (uint16_t)0);
	gl_store_relaxed(&c->countdown, 0);
}
