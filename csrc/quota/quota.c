/* SPDX-License-Identifier: Apache-2.0
 *
 * The variables that make a quota, in the order in which they count.  The first variable that is set decides alone;
 * later ones are not read.  A value that cannot be read leaves a quota that allows nothing.
 */
#include "quota/quota.h"

#include <string.h>

#include "quota/quota_text.h"

#define INDEXED_VARIABLES 16 /* CUDA_DEVICE_…_LIMIT_0 to _15 */

typedef int gl_shape(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rules, uint32_t *count);

/* One kind of quota while it is being read: where its rules go, and what its variables are called. */
struct kind {
	struct gl_quota_rule *rules;
	uint32_t *count;
	char *source;
	size_t source_bytes;
	const char *own, *json, *indexed;
	enum gl_amount_form own_form, json_form, indexed_form;
};

static struct kind memory_kind(struct gl_quota *quota)
{
	return (struct kind){quota->memory, &quota->memory_rules, quota->memory_source, sizeof(quota->memory_source),
			     "GPULIMIT_MEMORY", "TENSOR_FUSION_CUDA_MEM_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT",
			     GL_FORM_MEMORY, GL_FORM_BYTES, GL_FORM_MEMORY_SHORT};
}

static struct kind compute_kind(struct gl_quota *quota)
{
	return (struct kind){quota->compute, &quota->compute_rules, quota->compute_source,
			     sizeof(quota->compute_source), "GPULIMIT_COMPUTE", "TENSOR_FUSION_CUDA_UP_LIMIT",
			     "CUDA_DEVICE_SM_LIMIT", GL_FORM_COMPUTE, GL_FORM_PERCENT, GL_FORM_PERCENT};
}

static void set_source(struct kind *kind, const char *name)
{
	kind->source[0] = '\0';
	gl_text_append(kind->source, kind->source_bytes, name);
}

/* On failure all rules are removed, so that half a list is never used. */
static int parse(struct gl_quota *quota, struct kind *kind, const char *source, const char *value, gl_shape *shape,
		 enum gl_amount_form form)
{
	struct gl_text text = {quota, source, value, value};

	quota->set = 1;
	set_source(kind, source);
	if (shape(&text, form, kind->rules, kind->count) == 0)
		return 0;
	*kind->count = 0;
	return -1;
}

int gl_quota_parse_memory(struct gl_quota *quota, const char *source, const char *text)
{
	struct kind kind = memory_kind(quota);

	return parse(quota, &kind, source, text, gl_text_list, kind.own_form);
}

int gl_quota_parse_compute(struct gl_quota *quota, const char *source, const char *text)
{
	struct kind kind = compute_kind(quota);

	return parse(quota, &kind, source, text, gl_text_list, kind.own_form);
}

/* ---- CUDA_DEVICE_…_LIMIT and CUDA_DEVICE_…_LIMIT_<index>: one amount each ---- */

static int parse_indexed_one(struct gl_quota *quota, struct kind *kind, const char *name, const char *value,
			     int index)
{
	struct gl_text text = {quota, name, value, value};
	struct gl_quota_rule *rule = &kind->rules[*kind->count];

	quota->set = 1;
	if (*kind->count == 0)
		set_source(kind, name);
	memset(rule, 0, sizeof(*rule));
	rule->select = index < 0 ? GL_SELECT_ALL : GL_SELECT_INDEX;
	rule->index = index < 0 ? 0 : (uint32_t)index;
	gl_text_blanks(&text);
	if (gl_text_amount(&text, kind->indexed_form, rule) != 0)
		return -1;
	gl_text_blanks(&text);
	if (*text.at)
		return gl_text_fail(&text, text.at, "unexpected text after the amount");
	++*kind->count;
	return 0;
}

static int parse_indexed(struct gl_quota *quota, struct kind *kind, gl_lookup lookup, void *arg)
{
	for (int index = -1; index < INDEXED_VARIABLES; index++) {
		char name[48] = "";
		char suffix[4] = {'_', (char)('0' + index % 10), '\0', '\0'};
		const char *value;

		if (index >= 10)
			memcpy(suffix, (char[4]){'_', '1', (char)('0' + index % 10), '\0'}, 4);
		gl_text_append(name, sizeof(name), kind->indexed);
		gl_text_append(name, sizeof(name), index < 0 ? "" : suffix);
		value = lookup(name, arg);
		if (value && parse_indexed_one(quota, kind, name, value, index) != 0) {
			*kind->count = 0;
			return -1;
		}
	}
	return 0;
}

static int read_kind(struct gl_quota *quota, struct kind kind, gl_lookup lookup, void *arg)
{
	const char *value;

	if ((value = lookup(kind.own, arg)) != NULL)
		return parse(quota, &kind, kind.own, value, gl_text_list, kind.own_form);
	if ((value = lookup(kind.json, arg)) != NULL)
		return parse(quota, &kind, kind.json, value, gl_text_json, kind.json_form);
	return parse_indexed(quota, &kind, lookup, arg);
}

/* ---- the other variables ---- */

/* A variable that is set, as text to read; false if it is not. */
static bool open_variable(struct gl_quota *quota, const char *name, gl_lookup lookup, void *arg, struct gl_text *text)
{
	const char *value = lookup(name, arg);

	*text = (struct gl_text){quota, name, value, value};
	if (value)
		quota->set = 1;
	return value != NULL;
}

static int read_number(struct gl_text *text, uint32_t most, bool percent, const char *reason, uint32_t *out)
{
	uint64_t value;
	const char *first;

	gl_text_blanks(text);
	first = text->at;
	if (gl_text_whole(text, &value) != 0)
		return -1;
	if (percent && *text->at == '%')
		text->at++;
	gl_text_blanks(text);
	if (*text->at || value < 1 || value > most)
		return gl_text_fail(text, *text->at ? text->at : first, reason);
	*out = (uint32_t)value;
	return 0;
}

/* True if the rest of a text is `word`, in any case. */
static bool is_word(const struct gl_text *text, const char *word)
{
	size_t c = 0;

	while (word[c] && gl_lower(text->at[c]) == word[c])
		c++;
	return !word[c] && !text->at[c];
}

static int read_priority(struct gl_text *text, uint32_t *out)
{
	static const char names[][8] = {
		[GL_PRIORITY_LOW] = "low", [GL_PRIORITY_NORMAL] = "normal", [GL_PRIORITY_HIGH] = "high"};

	for (uint32_t i = GL_PRIORITY_LOW; i <= GL_PRIORITY_HIGH; i++) {
		if (is_word(text, names[i])) {
			*out = i;
			return 0;
		}
	}
	return gl_text_fail(text, text->at, "write high, normal or low");
}

static int read_name(struct gl_text *text, const char *if_empty, char out[64])
{
	size_t length = 0;

	for (; *text->at; text->at++, length++) {
		char c = *text->at, low = gl_lower(c);
		bool good = gl_is_digit(c) || (low >= 'a' && low <= 'z') || c == '_' || c == '-' || c == '.';

		if (!good || (length == 0 && c == '.'))
			return gl_text_fail(text, text->at,
					    "a name is of letters, digits, '-', '_' and '.', and does not begin with '.'");
		if (length == 63)
			return gl_text_fail(text, text->at, "a name has at most 63 characters");
		out[length] = c;
	}
	out[length] = '\0';
	return length ? 0 : gl_text_fail(text, text->at, if_empty);
}

static int read_gang(struct gl_quota *quota, struct gl_text *text)
{
	static const char words[][8] = {[GL_GANG_AUTO] = "auto", [GL_GANG_OFF] = "off"};

	for (uint32_t mode = GL_GANG_AUTO; mode <= GL_GANG_OFF; mode++) {
		if (is_word(text, words[mode])) {
			quota->gang_mode = mode;
			memcpy(quota->gang, words[mode], sizeof(words[mode]));
			return 0;
		}
	}
	if (is_word(text, "none"))
		return gl_text_fail(text, text->at, "write off for no gang; none is no gang's name");
	quota->gang_mode = GL_GANG_NAMED;
	return read_name(text, "it is empty; write off, auto or the gang's name", quota->gang);
}

/* The guarantee cannot be more than the ceiling. */
static int check_request(struct gl_quota *quota, struct gl_text *text)
{
	for (uint32_t i = 0; i < quota->compute_rules; i++) {
		if (quota->compute[i].amount < quota->request)
			return gl_text_fail(text, text->start, "more than the compute limit; lower it or raise the limit");
	}
	return 0;
}

static int read_rest(struct gl_quota *quota, gl_lookup lookup, void *arg)
{
	struct gl_text text;

	if (open_variable(quota, "GPULIMIT_WEIGHT", lookup, arg, &text) &&
	    read_number(&text, 10000, false, "write a whole number from 1 to 10000", &quota->weight) != 0)
		return -1;
	if (open_variable(quota, "GPULIMIT_PRIORITY", lookup, arg, &text) && read_priority(&text, &quota->priority) != 0)
		return -1;
	if (open_variable(quota, "GPULIMIT_MEMORY_WAIT", lookup, arg, &text) &&
	    read_number(&text, 86400, false, "write a whole number of seconds from 1 to 86400", &quota->memory_wait) != 0)
		return -1;
	if (open_variable(quota, "GPULIMIT_GANG", lookup, arg, &text) && read_gang(quota, &text) != 0)
		return -1;
	if (open_variable(quota, "GPULIMIT_TENANT", lookup, arg, &text) &&
	    read_name(&text, "it is empty; unset it for the default tenant", quota->tenant) != 0)
		return -1;
	if (!open_variable(quota, "GPULIMIT_REQUEST", lookup, arg, &text))
		return 0;
	if (read_number(&text, 100, true, "write a whole number from 1 to 100", &quota->request) != 0)
		return -1;
	return check_request(quota, &text);
}

int gl_quota_read(struct gl_quota *quota, gl_lookup lookup, void *arg)
{
	memset(quota, 0, sizeof(*quota));
	if (read_kind(quota, memory_kind(quota), lookup, arg) != 0)
		return -1;
	if (read_kind(quota, compute_kind(quota), lookup, arg) != 0)
		return -1;
	return read_rest(quota, lookup, arg);
}
