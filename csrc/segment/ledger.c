/* SPDX-License-Identifier: Apache-2.0
 *
 * Reserving memory for a tenant changes two words: the device's total, which is checked against the quota, and the
 * process's account, so that the bytes of a dead process can be found and released.  Both must change together although the
 * process may be killed between any two instructions.  No process may wait for another: a stopped one would stop its tenant.
 * So the actor first records an operation, then announces it in the total's word.  Each process that finds an announced
 * operation finishes it:
 *
 *   1. The actor writes target, old and new account word and the new total into its own account (op_*).
 *   2. It replaces the total's word, if unchanged, by BUSY | sequence | actor.  Killed before: nothing happened.
 *      Killed after: the operation will happen.
 *   3. Any process: account word old -> new by compare-and-swap (already done: fails, harmless).
 *   4. Any process: the total's word BUSY | sequence | actor -> sequence | new total.
 *
 * Both words carry a version that grows with every change, so that a helper that slept in between cannot apply
 * an old step: 15 bits of sequence in the total's word, 16 in an account's.  Wrapping round needs a helper to
 * sleep exactly a multiple of 32768 operations inside a window of a few instructions and find the same bytes there.
 */
#include "segment/ledger.h"

#include <errno.h>
#include <stdbool.h>

#include "base/sys.h"
#include "base/testpoint.h"

#define VALUE_BITS 48
#define VALUE_MASK ((UINT64_C(1) << VALUE_BITS) - 1)
#define BUSY (UINT64_C(1) << 63)
#define SEQUENCE_MASK UINT64_C(0x7fff)
/* Each lost round means that another process's operation was finished, so honest processes never reach this bound.  It ends
 * the call if a hostile process keeps writing invalid words. */
enum { MAX_ROUNDS = 1 << 20 };

static uint64_t value_of(uint64_t word)
{
	return word & VALUE_MASK;
}

static uint64_t next_sequence(uint64_t word)
{
	return ((((word >> VALUE_BITS) & SEQUENCE_MASK) + 1) & SEQUENCE_MASK) << VALUE_BITS;
}

static bool swap(uint64_t *word, uint64_t expected, uint64_t desired)
{
	return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* Finishes the operation announced by `busy`, of any process.  -EINVAL: the words are invalid. */
static int finish(struct gl_usage *usage, uint32_t device, uint64_t busy)
{
	uint64_t *word = &usage->device[device].ledger;
	uint64_t actor = value_of(busy);
	if (actor >= GL_MAX_SLOTS)
		return -EINVAL;
	struct gl_account *op = &usage->slot[actor].account[device];
	uint64_t target = gl_load_relaxed(&op->op_slot), before = gl_load_relaxed(&op->op_target_old);
	uint64_t after = gl_load_relaxed(&op->op_target_new), total = gl_load_relaxed(&op->op_total);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (gl_load_acquire(word) != busy)
		return 0; /* another process finished it, and op_* may belong to a later operation */
	if (target >= GL_MAX_SLOTS || total > VALUE_MASK)
		return -EINVAL;
	GL_TEST_POINT("ledger-announced");
	(void)swap(&usage->slot[target].account[device].bytes, before, after);
	GL_TEST_POINT("ledger-account-written");
	(void)swap(word, busy, (busy & (SEQUENCE_MASK << VALUE_BITS)) | total);
	return 0;
}

int gl_ledger_add(struct gl_usage *usage, uint32_t device, uint32_t actor, uint32_t target, int64_t delta,
		  uint64_t limit)
{
	if (device >= GL_MAX_DEVICES || actor >= GL_MAX_SLOTS || target >= GL_MAX_SLOTS || delta == INT64_MIN)
		return -EINVAL;
	uint64_t *word = &usage->device[device].ledger;
	struct gl_account *op = &usage->slot[actor].account[device];
	for (int round = 0; round < MAX_ROUNDS; round++) {
		uint64_t seen = gl_load_acquire(word);
		if (seen & BUSY) {
			int r = finish(usage, device, seen);
			if (r)
				return r;
			continue;
		}
		uint64_t account = gl_load_acquire(&usage->slot[target].account[device].bytes);
		uint64_t total = value_of(seen), own = value_of(account), size = (uint64_t)(delta < 0 ? -delta : delta);
		if (delta > 0 && (size > limit || total > limit - size))
			return -ENOMEM;
		if (delta > 0 ? size > VALUE_MASK - total : size > own || size > total)
			return delta > 0 ? -ENOMEM : -EINVAL;
		uint64_t version = ((account >> VALUE_BITS) + 1) << VALUE_BITS;
		gl_store_relaxed(&op->op_slot, target);
		gl_store_relaxed(&op->op_target_old, account);
		gl_store_relaxed(&op->op_target_new, version | (own + (uint64_t)delta));
		gl_store_relaxed(&op->op_total, total + (uint64_t)delta);
		GL_TEST_POINT("ledger-written-down");
		uint64_t busy = BUSY | next_sequence(seen) | actor;
		/* Publishes op_* to each reader of `busy`.  `account` was current: it only changes together with the word. */
		if (swap(word, seen, busy))
			return finish(usage, device, busy);
	}
	return -EINVAL;
}

uint64_t gl_ledger_total(const struct gl_usage *usage, uint32_t device)
{
	if (device >= GL_MAX_DEVICES)
		return 0;
	uint64_t seen = gl_load_acquire(&usage->device[device].ledger);
	while (seen & BUSY) {
		uint64_t actor = value_of(seen), total;
		if (actor >= GL_MAX_SLOTS)
			return 0;
		total = gl_load_acquire(&usage->slot[actor].account[device].op_total);
		uint64_t again = gl_load_acquire(&usage->device[device].ledger);
		if (again == seen)
			return value_of(total);
		seen = again;
	}
	return value_of(seen);
}

uint64_t gl_ledger_account(const struct gl_usage *usage, uint32_t device, uint32_t slot)
{
	if (device >= GL_MAX_DEVICES || slot >= GL_MAX_SLOTS)
		return 0;
	return value_of(gl_load_acquire(&usage->slot[slot].account[device].bytes));
}
