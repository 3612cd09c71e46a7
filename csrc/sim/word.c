/* SPDX-License-Identifier: Apache-2.0
 *
 * Flags in this process' memory.  The cards change them in the shared machine (flag.c); this process writes
 * them to its memory whenever it looks at the schedule, so that programs and copies find them there.
 *
 * Other bytes move when work is submitted.  Of a copy or fill over a flag, the flag's part is kept back and
 * happens when the card gets there; a copy from a flag to the host is made once more then.
 */
#include <stdlib.h>

#include "sim.h"

enum { WORD = 8, MAX_KNOWN = SIM_MAX_FLAGS };

struct word {
	uint64_t id, addr, seen; /* id: of the flag, to tell it from a later one at its place */
	uint32_t flag;
};
static struct word words[MAX_KNOWN];
static uint32_t nwords;

struct late {
	struct late *next;
	CUcontext ctx;
	uint64_t ctx_id, item;
	struct sim_copy copy;
};
static struct late *lates;

static uint64_t *memory_of(uint64_t addr)
{
	return (uint64_t *)(uintptr_t)addr;
}

bool sim_word_on_card(uint64_t addr)
{
	const struct sim_block *block = sim_block_with(addr);

	return block && block->kind != SIM_HOST && block->kind != SIM_REGISTERED && block->kind != SIM_MANAGED;
}

static struct sim_flag_place place_of(uint64_t addr)
{
	const struct sim_block *block = sim_block_with(addr);

	if (block && block->shared_id)
		return (struct sim_flag_place){ block->shared_id, block->offset + (addr - block->addr), SIM_NO_SLOT };
	return (struct sim_flag_place){ 0, addr, sim_slot };
}

static void know(uint32_t flag, uint64_t addr)
{
	const struct sim_flag *f = &sim_machine->flags[flag];

	for (uint32_t i = 0; i < nwords; i++)
		if (words[i].id == f->id && words[i].addr == addr)
			return;
	if (nwords < MAX_KNOWN)
		words[nwords++] = (struct word){ f->id, addr, UINT64_MAX, flag };
}

uint32_t sim_word_flag(uint64_t addr, uint32_t gpu)
{
	uint64_t word = addr / WORD * WORD;
	struct sim_flag_place place = place_of(word);
	uint32_t flag = sim_flag_take(&place, __atomic_load_n(memory_of(word), __ATOMIC_RELAXED), gpu);

	if (flag != SIM_NO_FLAG)
		know(flag, word);
	return flag;
}

/* Memory gets what the cards have written; memory that the host may change is read instead. */
static void settle(struct word *w)
{
	struct sim_flag *f = &sim_machine->flags[w->flag];

	if (!sim_word_on_card(w->addr)) {
		uint64_t now = __atomic_load_n(memory_of(w->addr), __ATOMIC_ACQUIRE);
		if (now != sim_flag_value(w->flag))
			sim_flag_write(w->flag, now, UINT64_MAX);
		f->written = f->changes;
	} else if (w->seen != f->changes) {
		__atomic_store_n(memory_of(w->addr), sim_flag_value(w->flag), __ATOMIC_RELEASE);
		w->seen = f->written = f->changes;
	}
}

static void settle_all(void)
{
	for (uint32_t i = 0; i < nwords;) {
		if (sim_machine->flags[words[i].flag].id != words[i].id) {
			words[i] = words[--nwords];
			continue;
		}
		settle(&words[i++]);
	}
}

static void copy_late(CUcontext ctx)
{
	const struct sim_queue *q = &sim_machine->queues[ctx->queue];

	for (struct late **at = &lates; *at;) {
		struct late *late = *at;
		bool gone = !late->ctx->alive || late->ctx->id != late->ctx_id;
		if (!gone && (late->ctx != ctx || !sim_item_done(q, late->item))) {
			at = &late->next;
			continue;
		}
		if (!gone)
			sim_copy_effect(&late->copy);
		*at = late->next;
		free(late);
	}
}

void sim_words_catch_up(CUcontext ctx)
{
	if (nwords)
		settle_all();
	if (lates)
		copy_late(ctx);
}

/* The bits of the word at `word` that lie in the range. */
static uint64_t covered(uint64_t word, uint64_t addr, uint64_t bytes)
{
	uint64_t from = addr > word ? addr - word : 0, end = addr + bytes < word + WORD ? addr + bytes - word : WORD;
	uint64_t below = end < WORD ? (1ull << end * 8) - 1 : UINT64_MAX;

	return below & ~(from ? (1ull << from * 8) - 1 : 0);
}

/* Locked: addresses of the flags that the range touches, at most SIM_MAX_HELD; they are known afterwards. */
static uint32_t find_all(uint64_t addr, uint64_t bytes, uint64_t *found)
{
	struct sim_flag_place start = place_of(addr / WORD * WORD);
	uint64_t whole = bytes + addr % WORD;
	uint32_t n = 0;

	for (uint32_t i = 0; i < sim_machine->flag_limit && n < SIM_MAX_HELD; i++) {
		const struct sim_flag *f = &sim_machine->flags[i];
		if (!f->id || f->shared != start.shared || f->slot != start.slot || f->at < start.at || f->at - start.at >= whole)
			continue;
		found[n] = addr / WORD * WORD + (f->at - start.at);
		know(i, found[n++]);
	}
	return n;
}

void sim_words_hold(struct sim_held *held, uint64_t addr, uint64_t bytes)
{
	held->n = 0;
	if (!bytes || !sim_machine->flag_limit || !sim_word_on_card(addr))
		return;
	sim_machine_lock();
	held->n = find_all(addr, bytes, held->word);
	settle_all();
	for (uint32_t i = 0; i < held->n; i++) {
		held->mask[i] = covered(held->word[i], addr, bytes);
		held->before[i] = *memory_of(held->word[i]);
	}
	sim_machine_unlock();
}

void sim_words_keep(struct sim_held *held)
{
	for (uint32_t i = 0; i < held->n; i++) {
		uint64_t low = held->mask[i] & (~held->mask[i] + 1);
		held->value[i] = (*memory_of(held->word[i]) & held->mask[i]) / low;
		__atomic_store_n(memory_of(held->word[i]), held->before[i], __ATOMIC_RELEASE);
	}
}

CUresult sim_words_change(CUstream stream, const struct sim_held *held)
{
	for (uint32_t i = 0; i < held->n; i++) {
		struct sim_work work = { .word = held->word[i] };
		work.item.op = SIM_SET;
		work.item.mask = held->mask[i];
		work.item.value = held->value[i];
		SIM_TRY(sim_submit_work(stream, &work));
	}
	return CUDA_SUCCESS;
}

void sim_words_copied(CUstream stream, const struct sim_copy *copy, uint64_t from)
{
	uint64_t found[SIM_MAX_HELD];

	if (!copy->bytes || !sim_machine->flag_limit || !sim_word_on_card(from))
		return;
	sim_machine_lock();
	bool any = find_all(from, copy->bytes, found);
	sim_machine_unlock();
	struct late *late = any ? malloc(sizeof(*late)) : NULL;
	if (!late)
		return;
	*late = (struct late){ lates, stream->ctx, stream->ctx->id, stream->last - 1, *copy };
	lates = late;
}

void sim_words_gone(const struct sim_block *block)
{
	if (!nwords && !sim_machine->flag_limit)
		return;
	for (uint32_t i = 0; i < nwords;) {
		if (words[i].addr - block->addr < block->bytes)
			words[i] = words[--nwords];
		else
			i++;
	}
	sim_machine_lock();
	if (!block->shared_id)
		sim_flags_forget(sim_slot, 0, block->addr, block->bytes);
	sim_machine_unlock();
}
