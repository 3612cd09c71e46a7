/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of paths as they stand in an environment variable: adding to them so that doing it again changes nothing.
 */
#ifndef GP_LIST_H
#define GP_LIST_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)

/* The change requested for one list.  Texts are bytes, in no encoding; none of them is changed. */
struct gp_edit {
	const char *separators; /* accepted separators; the first one is used for new entries */
	const char *front[2];   /* put first, in this order, and taken away from where they were; NULL: nothing */
	const char *back[2];    /* added at the end, unless they are in the list already; NULL: nothing */
};

/* Bytes that the result may take, its NUL included. */
size_t gp_list_room(const struct gp_edit *edit, const char *now);

/* Writes the list that `now` (NULL: not set) becomes into `out`, of gp_list_room() bytes, and ends it with NUL.
 *
 * What is there stays byte for byte, its own separators and empty entries (the current folder, in PATH) included,
 * except entries that move to the front.  Empty entries of front and back are nothing.  An empty list has no entry.
 * False: the list would be the same; `out` then holds a copy, or "" for one that is not set and stays so. */
bool gp_list_merge(const struct gp_edit *edit, const char *now, char *out);

#pragma GCC visibility pop

#endif
