/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the text of one quota variable: a cursor, the amounts and device names that it can hold, and the error
 * that says where it is wrong.  Nothing here depends on the locale, allocates, or prints.
 */
#ifndef GL_QUOTA_TEXT_H
#define GL_QUOTA_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quota/quota.h"

#pragma GCC visibility push(hidden)

struct gl_text {
	struct gl_quota *quota; /* takes the rules and the error */
	const char *source;     /* name of the variable or flag */
	const char *start;      /* its whole value */
	const char *at;         /* next character to read */
};

/* The form of the amounts of a variable. */
enum gl_amount_form {
	GL_FORM_MEMORY,       /* 4GiB, 512m, 50%, bytes */
	GL_FORM_MEMORY_SHORT, /* 512m, 4g, bytes */
	GL_FORM_BYTES,        /* bytes */
	GL_FORM_COMPUTE,      /* 30, 30% */
	GL_FORM_PERCENT,      /* 30 */
};

static inline bool gl_is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static inline char gl_lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

/* Writes the error for the character at `at` and returns -1.  The reason describes the right form. */
int gl_text_fail(struct gl_text *text, const char *at, const char *reason);
void gl_text_blanks(struct gl_text *text);
/* Appends to a string in a buffer of `size` bytes, cutting what does not fit. */
void gl_text_append(char *buffer, size_t size, const char *more);

/* Each reads its item at the cursor and moves behind it.  0, or -1 with the error written. */
int gl_text_whole(struct gl_text *text, uint64_t *value);
int gl_text_amount(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rule);
/* A device: "*", an index, or the beginning of a UUID, ending at `end`. */
int gl_text_device(struct gl_text *text, const char *end, struct gl_quota_rule *rule);

/* quota_list.c: the whole text as one amount or a list, or as a JSON object; fills rules[0..*count). */
int gl_text_list(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rules, uint32_t *count);
int gl_text_json(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rules, uint32_t *count);

#pragma GCC visibility pop

#endif
