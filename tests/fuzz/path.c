/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: adding to a list of paths.  Input: which separators; then what is there, two lists for the front and
 * two for the end, each ended by NUL, "-" for one that is not set.
 */
#include "path/list.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char *const separator_sets[] = {":", ": ", ":;"};

static void must(int truth)
{
	if (!truth)
		abort();
}

/* Where the entry begins in the list, or NULL. */
static const char *find(const char *list, const char *separators, const char *entry, size_t length)
{
	for (const char *at = list;; at++) {
		size_t n = strcspn(at, separators);

		if (n == length && memcmp(at, entry, n) == 0)
			return at;
		at += n;
		if (!*at)
			return NULL;
	}
}

static size_t empties(const char *list, const char *separators)
{
	size_t count = 0;

	if (!list || !*list)
		return 0;
	for (const char *at = list;; at++) {
		size_t n = strcspn(at, separators);

		count += n == 0;
		at += n;
		if (!*at)
			return count;
	}
}

/* All entries of `wanted` are in the list; with `from`, in order and one after the other from its begin. */
static void has_all(const char *list, const char *separators, const char *wanted)
{
	for (const char *at = wanted; at; at = *at ? at + 1 : NULL) {
		size_t n = strcspn(at, separators);

		must(!n || find(list, separators, at, n) != NULL);
		at += n;
		if (!*at)
			return;
	}
}

/* What was there keeps its order, without what moved to the front. */
static void keeps(const char *after, const char *separators, const char *before)
{
	const char *from = after;

	for (const char *at = before;; at++) {
		size_t n = strcspn(at, separators);

		if (n) {
			const char *next = find(from, separators, at, n);

			if (next)
				from = next;
			else
				must(find(after, separators, at, n) != NULL);
		}
		at += n;
		if (!*at)
			return;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text, *again, *out, *part[5] = {0};
	struct gp_edit edit;
	const char *now;

	if (size < 2)
		return 0;
	text = malloc(size);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = 0;
	for (char *at = text, **next = part; next < part + 5 && at < text + size; at += strlen(at) + 1)
		*next++ = strcmp(at, "-") ? at : NULL;
	edit = (struct gp_edit){separator_sets[data[0] % 3], {part[1], part[2]}, {part[3], part[4]}};
	now = part[0];

	out = malloc(gp_list_room(&edit, now));
	must(gp_list_merge(&edit, now, out) == (strcmp(out, now ? now : "") != 0));
	/* Once more changes nothing. */
	again = malloc(gp_list_room(&edit, out));
	must(!gp_list_merge(&edit, out, again));
	must(strcmp(out, again) == 0);
	for (int i = 1; i < 5; i++)
		if (part[i])
			has_all(out, edit.separators, part[i]);
	must(empties(out, edit.separators) == empties(now, edit.separators));
	if (now && *now)
		keeps(out, edit.separators, now);
	free(text);
	free(out);
	free(again);
	return 0;
}
