/* SPDX-License-Identifier: Apache-2.0
 *
 * cuGetProcAddress: the newest variant of a name that is no newer than the version asked for, its
 * per-thread-stream twin if the flag asks for it and there is one.  This file sees no prototypes: it
 * takes addresses only, and gives every symbol that no other file implements a weak body.
 */
#include <stdlib.h>
#include <string.h>

#include "machine.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500, NOT_SUPPORTED = 801 };
enum { FOUND, UNKNOWN_NAME, TOO_OLD }; /* CU_GET_PROC_ADDRESS_* */

#define SIM_CU(base, version, twin, symbol)                                       \
	__attribute__((weak, visibility("default"))) int symbol(void);            \
	int symbol(void)                                                          \
	{                                                                         \
		static struct sim_site site = { #symbol, 0, NULL };               \
		int code;                                                         \
		if (sim_fault_enter(&site, &code))                                \
			return code;                                              \
		return NOT_SUPPORTED;                                             \
	}
#include "exports.def"
#undef SIM_CU

struct row {
	const char *name;
	int version;
	const char *twin, *symbol;
	int (*address)(void);
};

#define SIM_CU(base, version, twin, symbol) { #base, version, twin, #symbol, symbol },
static const struct row rows[] = {
#include "exports.def"
};
#undef SIM_CU

static bool listed(const char *list, const char *symbol)
{
	size_t n = strlen(symbol);

	for (const char *at = list; at && (at = strstr(at, symbol)); at += n)
		if ((at == list || at[-1] == ',') && (at[n] == ',' || !at[n]))
			return true;
	return false;
}

/* Whether this driver has the row: it is new enough, and not declared missing. */
static bool present(const struct row *row)
{
	unsigned driver = sim_machine ? sim_machine->cuda_version : 13000;

	return (unsigned)row->version <= driver && !listed(getenv("GPULIMIT_SIM_MISSING"), row->symbol);
}

static int find(const char *name, int version, bool per_thread, void **pfn)
{
	const struct row *best = NULL;
	bool known = false;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *row = &rows[i];
		if (strcmp(row->name, name) || !present(row))
			continue;
		known = true;
		if (row->version > version || (row->twin[0] && !per_thread))
			continue;
		if (!best || (row->twin[0] && !best->twin[0]) || (!row->twin[0] == !best->twin[0] && row->version > best->version))
			best = row;
	}
	if (!best)
		return known ? TOO_OLD : UNKNOWN_NAME;
	memcpy(pfn, &best->address, sizeof(*pfn));
	return FOUND;
}

int sim_proc_address(const char *name, void **pfn, int version, uint64_t flags, int *status)
{
	if (!name || !pfn || flags > 2)
		return INVALID_VALUE;
	*pfn = NULL;
	int outcome = find(name, version, flags == 2, pfn);
	if (status)
		*status = outcome;
	return outcome == FOUND ? SUCCESS : NOT_FOUND;
}
