/* SPDX-License-Identifier: Apache-2.0
 *
 * The two shapes of a quota per device: our list, "0=4GiB,GPU-3430f778=2GiB,*=1GiB", and the JSON object of an
 * older limiter, {"GPU-3430f778-…": 1073741824}.
 */
#include "quota/quota_text.h"

#include <string.h>

/* True if two rules could name one card in the same way. */
static bool same_device(const struct gl_quota_rule *a, const struct gl_quota_rule *b)
{
	size_t shorter;

	if (a->select != b->select)
		return false;
	if (a->select == GL_SELECT_INDEX)
		return a->index == b->index;
	if (a->select == GL_SELECT_ALL)
		return true;
	shorter = strlen(a->uuid) < strlen(b->uuid) ? strlen(a->uuid) : strlen(b->uuid);
	return memcmp(a->uuid, b->uuid, shorter) == 0;
}

/* Returns where the next rule is to be stored, or NULL with the error written. */
static struct gl_quota_rule *next_rule(struct gl_text *text, struct gl_quota_rule *rules, uint32_t count)
{
	if (count == GL_QUOTA_RULES) {
		gl_text_fail(text, text->at, "more than 32 devices");
		return NULL;
	}
	memset(&rules[count], 0, sizeof(rules[count]));
	return &rules[count];
}

static int refuse_duplicate(struct gl_text *text, const char *at, const struct gl_quota_rule *rules, uint32_t last)
{
	for (uint32_t i = 0; i < last; i++) {
		if (same_device(&rules[i], &rules[last]))
			return gl_text_fail(text, at, "the device is named twice");
	}
	return 0;
}

/* ---- lists ---- */

/* The '=' of the entry at the cursor, or NULL if it is an amount alone. */
static const char *find_equals(const char *at)
{
	for (; *at && *at != ','; at++) {
		if (*at == '=')
			return at;
	}
	return NULL;
}

static int read_entry(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rules, uint32_t last)
{
	const char *first = text->at, *equals = find_equals(first), *end = equals;

	if (equals) {
		while (end > first && (end[-1] == ' ' || end[-1] == '\t'))
			end--;
		if (gl_text_device(text, end, &rules[last]) != 0 || refuse_duplicate(text, first, rules, last) != 0)
			return -1;
		text->at = equals + 1;
		gl_text_blanks(text);
	} else if (last > 0) {
		return gl_text_fail(text, first, "an amount without a device; write 0=4GiB, *=1GiB");
	}
	if (gl_text_amount(text, form, &rules[last]) != 0)
		return -1;
	gl_text_blanks(text);
	if (*text->at && *text->at != ',')
		return gl_text_fail(text, text->at, "unexpected text after the amount");
	if (*text->at)
		text->at++;
	return 0;
}

int gl_text_list(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rules, uint32_t *count)
{
	bool single = false;

	for (*count = 0; gl_text_blanks(text), *text->at; ++*count) {
		if (single)
			return gl_text_fail(text, text->at, "only one amount can stand without a device");
		if (*text->at == ',')
			return gl_text_fail(text, text->at, "an entry is missing before the comma");
		if (!next_rule(text, rules, *count))
			return -1;
		single = !find_equals(text->at);
		if (read_entry(text, form, rules, *count) != 0)
			return -1;
	}
	if (*count == 0)
		return gl_text_fail(text, text->at, "it is empty; unset it for no limit");
	return 0;
}

/* ---- JSON ---- */

static int expect(struct gl_text *text, char c, const char *reason)
{
	gl_text_blanks(text);
	if (*text->at != c)
		return gl_text_fail(text, text->at, reason);
	text->at++;
	gl_text_blanks(text);
	return 0;
}

static int read_member(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rules, uint32_t last)
{
	const char *first, *end;

	if (expect(text, '"', "expected a device in double quotes") != 0)
		return -1;
	first = text->at;
	for (end = first; *end && *end != '"'; end++)
		;
	if (!*end)
		return gl_text_fail(text, end, "the closing quote is missing");
	if (gl_text_device(text, end, &rules[last]) != 0 || refuse_duplicate(text, first, rules, last) != 0)
		return -1;
	text->at = end + 1;
	if (expect(text, ':', "expected a colon after the device") != 0)
		return -1;
	return gl_text_amount(text, form, &rules[last]);
}

int gl_text_json(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rules, uint32_t *count)
{
	*count = 0;
	if (expect(text, '{', "expected a JSON object such as {\"0\": 1073741824}") != 0)
		return -1;
	if (*text->at == '}')
		return gl_text_fail(text, text->at, "it names no device; unset it for no limit");
	for (;;) {
		if (!next_rule(text, rules, *count) || read_member(text, form, rules, *count) != 0)
			return -1;
		++*count;
		gl_text_blanks(text);
		if (*text->at != ',')
			break;
		text->at++;
	}
	if (expect(text, '}', "expected a comma or the closing brace") != 0)
		return -1;
	if (*text->at)
		return gl_text_fail(text, text->at, "unexpected text after the object");
	return 0;
}
