/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: ledger operations on a segment full of nonsense return, stay inside it and keep their word.
 * Input: records that each put a word in place or make one call.
 */
#include "segment/ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void must(int truth)
{
	if (!truth)
		abort();
}

struct record {
	uint32_t place;
	uint8_t device, actor, target, what;
	uint64_t value;
};

/* The words that the ledger reads, of a few devices and slots. */
static uint64_t *word_at(struct gl_usage *usage, const struct record *record)
{
	uint32_t device = record->device % 3, slot = record->target % 4;
	struct gl_account *account = &usage->slot[slot].account[device];
	uint64_t *const words[] = {&usage->device[device].ledger, &account->bytes, &account->op_target_old,
				   &account->op_target_new, &account->op_total, &account->op_slot};

	return words[record->place % (sizeof(words) / sizeof(*words))];
}

static void operate(struct gl_usage *usage, const struct record *record)
{
	int64_t delta = (int64_t)record->value;
	/* Every bit pattern but the most negative number, which no caller can mean. */
	if (delta == INT64_MIN)
		delta++;
	int r = gl_ledger_add(usage, record->device, record->actor, record->target, delta, record->place);
	must(r == 0 || r == -ENOMEM || r == -EINVAL);
	must(gl_ledger_total(usage, record->device) < UINT64_C(1) << 48);
	must(gl_ledger_account(usage, record->device, record->target) < UINT64_C(1) << 48);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct gl_usage *usage;
	struct record record;

	if (!usage)
		usage = malloc(sizeof(*usage));
	must(usage != NULL);
	memset(usage->device, 0, sizeof(usage->device));
	memset(usage->slot, 0, 4 * sizeof(usage->slot[0]));
	for (; size >= sizeof(record); data += sizeof(record), size -= sizeof(record)) {
		memcpy(&record, data, sizeof(record));
		if (record.what & 1)
			*word_at(usage, &record) = record.value;
		else
			operate(usage, &record);
	}
	return 0;
}
