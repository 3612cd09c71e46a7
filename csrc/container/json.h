/* SPDX-License-Identifier: Apache-2.0
 *
 * As much of JSON as finding a member takes.  Texts end with a null byte.
 */
#ifndef GL_JSON_H
#define GL_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* Where the value of an object's member begins; NULL: there is none, or this is no object. */
const char *json_member(const char *object, const char *name);

/* Takes a string value; false: it is none, does not fit, or has characters beyond ASCII written as escapes. */
bool json_text(const char *value, char *out, size_t size);

#endif
