/* SPDX-License-Identifier: Apache-2.0
 *
 * See list.h.  Pure: no environment, no allocation, no locale.
 */
#include "list.h"

#include <string.h>

struct entry {
	const char *text;
	size_t length;
};

struct output {
	const char *separators;
	char *text;
	size_t length;
	bool any; /* an entry was written, an empty one perhaps */
};

/* The entry at `at`, and where the next one begins; NULL after the last. */
static const char *next_entry(const char *at, const char *separators, struct entry *entry)
{
	entry->text = at;
	entry->length = strcspn(at, separators);
	return at[entry->length] ? at + entry->length + 1 : NULL;
}

/* `list`, of `length` bytes, has the entry; `list` need not end with NUL. */
static bool contains(const char *list, size_t length, const char *separators, struct entry wanted)
{
	size_t begin = 0;

	for (size_t i = 0; i <= length; i++) {
		if (i < length && !strchr(separators, list[i]))
			continue;
		if (i - begin == wanted.length && memcmp(list + begin, wanted.text, wanted.length) == 0)
			return true;
		begin = i + 1;
	}
	return false;
}

static void put(struct output *out, char separator, struct entry entry)
{
	if (out->any)
		out->text[out->length++] = separator;
	memcpy(out->text + out->length, entry.text, entry.length);
	out->length += entry.length;
	out->any = true;
}

/* Adds the entries of `list` that are not yet there. */
static void put_new(struct output *out, const char *list)
{
	while (list) {
		struct entry entry;

		list = next_entry(list, out->separators, &entry);
		if (entry.length && !contains(out->text, out->length, out->separators, entry))
			put(out, out->separators[0], entry);
	}
}

/* Adds the entries of `now` with the separators that they had, except those that were put first. */
static void put_rest(struct output *out, const char *now)
{
	size_t front = out->length;
	char separator = out->separators[0];

	while (now) {
		struct entry entry;

		now = next_entry(now, out->separators, &entry);
		if (!entry.length || !front || !contains(out->text, front, out->separators, entry))
			put(out, separator, entry);
		separator = now ? now[-1] : separator;
	}
}

size_t gp_list_room(const struct gp_edit *edit, const char *now)
{
	size_t room = 1;

	for (int i = 0; i < 2; i++) {
		room += edit->front[i] ? strlen(edit->front[i]) + 1 : 0;
		room += edit->back[i] ? strlen(edit->back[i]) + 1 : 0;
	}
	return room + (now ? strlen(now) + 1 : 0);
}

bool gp_list_merge(const struct gp_edit *edit, const char *now, char *out)
{
	struct output output = {.separators = edit->separators, .text = out};

	put_new(&output, edit->front[0]);
	put_new(&output, edit->front[1]);
	if (now && *now)
		put_rest(&output, now);
	put_new(&output, edit->back[0]);
	put_new(&output, edit->back[1]);
	out[output.length] = '\0';
	return strcmp(out, now ? now : "") != 0;
}
