/* SPDX-License-Identifier: Apache-2.0
 *
 * Only an entry's payer changes the payer, or the process that reaps it.  The next payer is charged before it is named,
 * and the previous one uncharges afterwards.  So a process that is killed in between leaves one charge too many, which
 * ends with the charged process, and never one too few.
 */
#include "segment/shares.h"

#include <errno.h>
#include <stdbool.h>

#include "base/sys.h"
#include "segment/ledger.h"
#include "segment/loans.h"

/* A process with very many locks makes each look slow.  Entries not looked at within this time count as charged to the
 * tenant itself. */
#define MAX_LENT_NS UINT64_C(2000000)

static uint32_t used(const struct gl_usage *usage)
{
	uint32_t n = gl_load_acquire(&usage->header.shares_used);
	return n < GL_MAX_SHARES ? n : GL_MAX_SHARES;
}

static void hold(struct gl_share *s, uint32_t slot)
{
	(void)__atomic_fetch_or(&s->holder[slot / 64], UINT64_C(1) << (slot % 64), __ATOMIC_SEQ_CST);
}

static void let_go(struct gl_share *s, uint32_t slot)
{
	(void)__atomic_fetch_and(&s->holder[slot / 64], ~(UINT64_C(1) << (slot % 64)), __ATOMIC_SEQ_CST);
}

static bool holds(const struct gl_share *s, uint32_t slot)
{
	return __atomic_load_n(&s->holder[slot / 64], __ATOMIC_SEQ_CST) >> (slot % 64) & 1;
}

static bool swap(uint32_t *word, uint32_t expected, uint32_t desired)
{
	return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

int gl_share_add(struct gl_usage *usage, uint32_t slot, const struct gl_share *share)
{
	for (uint32_t i = 0; i < GL_MAX_SHARES; i++) {
		struct gl_share *s = &usage->share[i];
		uint32_t seen = gl_load_acquire(&usage->header.shares_used);
		if (i >= seen) /* only grows; if another process wins the race, its value is large enough */
			(void)swap(&usage->header.shares_used, seen, i + 1);
		if (!swap(&s->taken, 0, 1))
			continue;
		gl_store_relaxed(&s->key, share->key);
		gl_store_relaxed(&s->bytes, share->bytes);
		gl_store_relaxed(&s->device, share->device);
		gl_store_relaxed(&s->kind, share->kind);
		gl_store_relaxed(&s->in_pool, share->in_pool);
		gl_store_relaxed(&s->adopted, share->adopted);
		gl_store_relaxed(&s->place, share->place);
		gl_store_relaxed(&s->common, share->common);
		for (uint32_t w = 0; w < GL_MAX_SLOTS / 64; w++)
			gl_store_relaxed(&s->holder[w], 0);
		hold(s, slot);
		gl_store_release(&s->payer, slot + 1);
		return (int)i;
	}
	return -ENOSPC;
}

static bool sane(const struct gl_share *s)
{
	return gl_load_relaxed(&s->device) < GL_MAX_DEVICES && gl_load_relaxed(&s->kind) < GL_MEM_KINDS &&
	       gl_load_relaxed(&s->bytes) <= INT64_MAX;
}

static void charge(struct gl_usage *usage, const struct gl_share *s, uint32_t actor, uint32_t target, bool more)
{
	uint32_t device = gl_load_relaxed(&s->device);
	int64_t bytes = (int64_t)gl_load_relaxed(&s->bytes);
	if (gl_ledger_add(usage, device, actor, target, more ? bytes : -bytes, UINT64_MAX) == 0)
		gl_add_relaxed(&usage->slot[target].account[device].kind_bytes[gl_load_relaxed(&s->kind)],
			       (uint64_t)(more ? bytes : -bytes));
}

/* Another process that holds the memory; -1: none. */
static int next_holder(const struct gl_usage *usage, const struct gl_share *s, uint32_t slot)
{
	for (uint32_t n = 1; n < GL_MAX_SLOTS; n++) {
		uint32_t i = (slot + n) % GL_MAX_SLOTS;
		if (holds(s, i) && (gl_load_acquire(&usage->slot[i].generation) & 1))
			return (int)i;
	}
	return -1;
}

static void end(struct gl_share *s)
{
	gl_store_relaxed(&s->key, 0);
	gl_store_release(&s->taken, 0u);
}

/* Passes on the charge of `slot`, acting as `actor`, or uncharges it if no other process holds the memory. */
static void pass_on(struct gl_usage *usage, struct gl_share *s, uint32_t slot, uint32_t actor)
{
	int next = next_holder(usage, s, slot);
	uint32_t payer = slot + 1;
	bool pays_itself = !gl_load_relaxed(&s->in_pool);
	if (next < 0) {
		if (!swap(&s->payer, payer, 0))
			return;
		payer = 0;
		next = next_holder(usage, s, slot); /* another process joined at this moment */
	}
	if (next < 0) {
		if (pays_itself)
			charge(usage, s, actor, slot, false);
		end(s);
		return;
	}
	charge(usage, s, actor, (uint32_t)next, true);
	gl_store_relaxed(&s->in_pool, 0u);
	gl_store_relaxed(&s->adopted, 1u);
	if (swap(&s->payer, payer, (uint32_t)next + 1) && pays_itself)
		charge(usage, s, actor, slot, false);
	/* The new payer released the memory before it became the payer. */
	if (!holds(s, (uint32_t)next) && gl_load_acquire(&s->payer) == (uint32_t)next + 1)
		pass_on(usage, s, (uint32_t)next, actor);
}

void gl_share_leave(struct gl_usage *usage, uint32_t entry, uint32_t slot)
{
	struct gl_share *s = entry < GL_MAX_SHARES ? &usage->share[entry] : NULL;
	if (!s || !sane(s) || slot >= GL_MAX_SLOTS)
		return;
	let_go(s, slot);
	if (gl_load_acquire(&s->payer) == slot + 1)
		pass_on(usage, s, slot, slot);
}

int gl_share_join(struct gl_usage *usage, uint32_t slot, uint64_t key)
{
	for (uint32_t i = 0, n = used(usage); i < n; i++) {
		struct gl_share *s = &usage->share[i];
		if (gl_load_relaxed(&s->key) != key || !gl_load_acquire(&s->payer))
			continue;
		hold(s, slot);
		if (__atomic_load_n(&s->payer, __ATOMIC_SEQ_CST) && gl_load_relaxed(&s->key) == key)
			return (int)i;
		gl_share_leave(usage, i, slot); /* the last holder released it at the same moment */
	}
	return -ENOENT;
}

void gl_share_leave_all(struct gl_usage *usage, uint32_t slot)
{
	for (uint32_t i = 0, n = used(usage); i < n; i++)
		if (holds(&usage->share[i], slot))
			gl_share_leave(usage, i, slot);
}

uint64_t gl_share_adopted(const struct gl_usage *usage, uint32_t device, uint32_t slot)
{
	uint64_t sum = 0;
	for (uint32_t i = 0, n = used(usage); i < n; i++) {
		const struct gl_share *s = &usage->share[i];
		if (gl_load_acquire(&s->payer) == slot + 1 && gl_load_relaxed(&s->adopted) &&
		    gl_load_relaxed(&s->device) == device)
			sum += gl_load_relaxed(&s->bytes);
	}
	return sum;
}

uint64_t gl_share_lent(const struct gl_usage *usage, uint32_t device, uint32_t slot, int fd)
{
	uint64_t sum = 0, end = gl_now_ns() + MAX_LENT_NS;
	for (uint32_t i = 0, n = used(usage); i < n && gl_now_ns() < end; i++) {
		const struct gl_share *s = &usage->share[i];
		uint32_t payer = gl_load_acquire(&s->payer), place = gl_load_relaxed(&s->place);
		if (place && payer && gl_load_relaxed(&s->device) == device && (slot >= GL_MAX_SLOTS || payer == slot + 1) && sane(s) &&
		    gl_loan_is_paid(fd, gl_load_relaxed(&s->common), place))
			sum += gl_load_relaxed(&s->bytes);
	}
	return sum;
}
