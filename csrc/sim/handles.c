/* SPDX-License-Identifier: Apache-2.0
 *
 * Which handles are live: an open-addressed hash from pointer to kind, so that a stale or foreign handle
 * is answered with an error instead of a crash.  Under the process lock.
 */
#include <stdlib.h>

#include "sim.h"

struct entry {
	const void *handle; /* NULL: never used */
	int kind;           /* 0: dropped */
};
static struct entry *table;
static size_t capacity, filled;

static size_t slot_of(const struct entry *in, size_t size, const void *handle)
{
	size_t at = (size_t)(((uintptr_t)handle >> 4) * 0x9e3779b97f4a7c15ull) & (size - 1);

	while (in[at].handle && in[at].handle != handle)
		at = (at + 1) & (size - 1);
	return at;
}

static bool grow(void)
{
	size_t size = capacity ? capacity * 2 : 1024;
	struct entry *bigger = calloc(size, sizeof(*bigger));

	if (!bigger)
		return false;
	filled = 0;
	for (size_t i = 0; i < capacity; i++) {
		if (!table[i].handle || !table[i].kind)
			continue;
		bigger[slot_of(bigger, size, table[i].handle)] = table[i];
		filled++;
	}
	free(table);
	table = bigger;
	capacity = size;
	return true;
}

bool sim_handle_add(const void *handle, enum sim_kind kind)
{
	if (filled * 2 >= capacity && !grow())
		return false;
	struct entry *e = &table[slot_of(table, capacity, handle)];
	filled += !e->handle;
	*e = (struct entry){ handle, (int)kind };
	return true;
}

bool sim_handle_is(const void *handle, enum sim_kind kind)
{
	if (!handle || !capacity)
		return false;
	return table[slot_of(table, capacity, handle)].handle == handle &&
		table[slot_of(table, capacity, handle)].kind == (int)kind;
}

void sim_handle_drop(const void *handle)
{
	if (handle && capacity)
		table[slot_of(table, capacity, handle)].kind = 0;
}

void sim_handle_sweep(enum sim_kind kind, const void *owner, void (*drop)(void *object))
{
	for (size_t i = 0; i < capacity; i++) {
		if (!table[i].handle || table[i].kind != (int)kind)
			continue;
		void *object = (void *)(uintptr_t)table[i].handle;
		if (*(const void **)object != owner)
			continue;
		table[i].kind = 0;
		drop(object);
	}
}
