/* SPDX-License-Identifier: Apache-2.0
 *
 * Flags: the words of device memory that work waits for and sets, as the cards see them.  A process writes
 * them to its memory when it next looks at the schedule (word.c).  The table is bounded: a flag that no
 * unfinished work names, and whose memory has its value, makes room for others.
 */
#include <string.h>

#include "machine.h"

uint64_t sim_flag_value(uint32_t flag)
{
	const struct sim_flag *f = &sim_machine->flags[flag];

	return f->values[f->changes % 2];
}

void sim_flag_write(uint32_t flag, uint64_t value, uint64_t mask)
{
	struct sim_flag *f = &sim_machine->flags[flag];
	uint64_t old = f->values[f->changes % 2];

	f->values[(f->changes + 1) % 2] = (old & ~mask) | (value & mask);
	__atomic_store_n(&f->changes, f->changes + 1, __ATOMIC_RELEASE);
}

static bool is_at(const struct sim_flag *f, const struct sim_flag_place *place)
{
	return f->id && f->at == place->at && f->shared == place->shared && f->slot == place->slot &&
		(f->shared || f->slot != SIM_NO_SLOT);
}

uint32_t sim_flag_find(const struct sim_flag_place *place)
{
	for (uint32_t i = 0; i < sim_machine->flag_limit; i++)
		if (is_at(&sim_machine->flags[i], place))
			return i;
	return SIM_NO_FLAG;
}

/* All cards of the set are together; true if that is new. */
static bool join_cards(uint64_t set)
{
	struct sim_machine *m = sim_machine;
	uint64_t all = set;
	bool grew = false;

	for (uint32_t gpu = 0; gpu < m->ngpus; gpu++)
		if (set >> gpu & 1)
			all |= m->gpus[gpu].together;
	for (uint32_t gpu = 0; gpu < m->ngpus; gpu++) {
		if (!(all >> gpu & 1) || m->gpus[gpu].together == all)
			continue;
		m->gpus[gpu].together = all;
		grew = true;
	}
	return grew;
}

static void group_cards(void)
{
	struct sim_machine *m = sim_machine;
	bool grew = true;

	for (uint32_t gpu = 0; gpu < m->ngpus; gpu++)
		m->gpus[gpu].together = 1ull << gpu;
	while (grew) {
		grew = false;
		for (uint32_t i = 0; i < m->flag_limit; i++)
			grew |= m->flags[i].id && join_cards(m->flags[i].cards);
		for (uint32_t gpu = 0; gpu < m->ngpus; gpu++)
			grew |= join_cards(m->gpus[gpu].waited | 1ull << gpu);
	}
}

/* Before the groups change: up to here each by itself. */
static void advance_all(void)
{
	uint64_t now = sim_now();

	for (uint32_t gpu = 0; gpu < sim_machine->ngpus; gpu++)
		sim_gpu_advance(gpu, now);
}

void sim_card_waits(uint32_t gpu, uint32_t other)
{
	if (gpu == other || sim_machine->gpus[gpu].waited >> other & 1)
		return;
	advance_all();
	sim_machine->gpus[gpu].waited |= 1ull << other;
	group_cards();
}

/* Bit per flag that unfinished work names. */
static void mark_named(uint64_t *named)
{
	for (uint32_t i = 0; i < sim_machine->queue_limit; i++) {
		const struct sim_queue *q = &sim_machine->queues[i];
		for (uint64_t at = q->head; q->used && at < q->tail; at++) {
			const struct sim_item *item = sim_item_at(q, at);
			if (item->done || item->op == SIM_PLAIN)
				continue;
			named[item->flag / 64] |= 1ull << (item->flag % 64);
			if (item->bails != SIM_NO_FLAG)
				named[item->bails / 64] |= 1ull << (item->bails % 64);
		}
	}
}

static void make_room(void)
{
	uint64_t named[SIM_MAX_FLAGS / 64] = { 0 };

	mark_named(named);
	for (uint32_t i = 0; i < SIM_MAX_FLAGS; i++) {
		struct sim_flag *f = &sim_machine->flags[i];
		bool gone = !f->shared && f->slot == SIM_NO_SLOT;
		if (!(named[i / 64] >> (i % 64) & 1) && (gone || f->written == f->changes))
			f->id = 0;
	}
	group_cards();
}

static uint32_t free_place(void)
{
	for (int attempt = 0; attempt < 2; attempt++) {
		for (uint32_t i = 0; i < SIM_MAX_FLAGS; i++)
			if (!sim_machine->flags[i].id)
				return i;
		make_room();
	}
	return SIM_NO_FLAG;
}

static uint32_t new_flag(const struct sim_flag_place *place, uint64_t value)
{
	uint32_t at = free_place();

	if (at == SIM_NO_FLAG)
		return at;
	struct sim_flag *f = &sim_machine->flags[at];
	*f = (struct sim_flag){ .shared = place->shared, .slot = place->slot, .at = place->at, .values = { value, 0 } };
	f->id = sim_machine->next_id++;
	if (sim_machine->flag_limit <= at)
		sim_machine->flag_limit = at + 1;
	return at;
}

uint32_t sim_flag_take(const struct sim_flag_place *place, uint64_t value, uint32_t gpu)
{
	uint32_t at = sim_flag_find(place);

	if (at == SIM_NO_FLAG)
		at = new_flag(place, value);
	if (at == SIM_NO_FLAG || sim_machine->flags[at].cards >> gpu & 1)
		return at;
	advance_all();
	sim_machine->flags[at].cards |= 1ull << gpu;
	group_cards();
	return at;
}

void sim_flags_forget(uint32_t slot, uint64_t shared, uint64_t from, uint64_t bytes)
{
	for (uint32_t i = 0; i < sim_machine->flag_limit; i++) {
		struct sim_flag *f = &sim_machine->flags[i];
		if (!f->id || f->slot != slot || f->shared != shared || f->at < from || f->at - from >= bytes)
			continue;
		f->slot = SIM_NO_SLOT;
		f->shared = 0;
	}
}

void sim_flags_share(uint64_t shared, uint64_t from, uint64_t bytes)
{
	for (uint32_t i = 0; i < sim_machine->flag_limit; i++) {
		struct sim_flag *f = &sim_machine->flags[i];
		if (!f->id || f->slot != sim_slot || f->shared || f->at < from || f->at - from >= bytes)
			continue;
		f->slot = SIM_NO_SLOT;
		f->shared = shared;
		f->at -= from;
	}
}
