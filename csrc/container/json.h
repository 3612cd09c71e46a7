/* SPDX-License-Identifier: Apache-2.0
 *
 * The subset of JSON that is needed to find a member.  Texts end with a null byte.
 */
#ifndef GL_JSON_H
#define GL_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* Returns where the value of an object's member begins; NULL: there is no such member, or the text is no object. */
const char *json_member(const char *object, const char *name);

/* Reads a string value.  False: it is no string, does not fit, or has characters beyond ASCII written as escapes. */
bool json_text(const char *value, char *out, size_t size);

#endif
