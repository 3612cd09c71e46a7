/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

static const char *skip_blanks(const char *at)
{
	while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')
		at++;
	return at;
}

/* Skips a string, from the opening quote to behind the closing one; NULL: there is none. */
static const char *skip_text(const char *at)
{
	for (at++; *at && *at != '"'; at++)
		if (*at == '\\' && !*++at)
			return NULL;
	return *at ? at + 1 : NULL;
}

/* Skips a value; NULL: the text ends before it does. */
static const char *skip_value(const char *at)
{
	size_t depth = 0;
	for (;;) {
		if (!*at)
			return NULL;
		if (*at == '"') {
			at = skip_text(at);
			if (!at)
				return NULL;
		} else if (*at == '{' || *at == '[') {
			depth++;
			at++;
		} else if (*at == '}' || *at == ']') {
			if (!depth) /* behind a number or a word */
				return at;
			depth--;
			at++;
		} else if (*at == ',' && !depth) {
			return at;
		} else {
			at++;
			continue;
		}
		if (!depth)
			return at;
	}
}

static bool is_named(const char *text, const char *name)
{
	for (text++; *name && *text == *name; text++)
		name++;
	return !*name && *text == '"';
}

const char *json_member(const char *object, const char *name)
{
	const char *at = skip_blanks(object);
	if (*at++ != '{')
		return NULL;
	for (;;) {
		at = skip_blanks(at);
		if (*at != '"')
			return NULL;
		const char *key = at;
		at = skip_text(at);
		if (!at)
			return NULL;
		at = skip_blanks(at);
		if (*at++ != ':')
			return NULL;
		at = skip_blanks(at);
		if (is_named(key, name))
			return at;
		at = skip_value(at);
		if (!at)
			return NULL;
		at = skip_blanks(at);
		if (*at++ != ',')
			return NULL;
	}
}

static int hex(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	digit |= 0x20;
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Decodes one escape.  The cursor moves from behind its backslash to its last character; 0: not supported. */
static char escaped(const char **at)
{
	const char *from = *at;
	if (*from == '"' || *from == '\\' || *from == '/')
		return *from;
	if (*from != 'u' || from[1] != '0' || from[2] != '0' || hex(from[3]) < 0 || hex(from[4]) < 0)
		return 0;
	*at = from + 4;
	int code = hex(from[3]) * 16 + hex(from[4]);
	return code < 0x80 ? (char)code : 0;
}

bool json_text(const char *value, char *out, size_t size)
{
	size_t length = 0;
	if (*value != '"')
		return false;
	for (const char *at = value + 1; *at; at++) {
		if (*at == '"') {
			out[length] = 0;
			return true;
		}
		char character = *at;
		if (character == '\\') {
			at++;
			character = escaped(&at);
		}
		if (!character || length + 1 >= size)
			return false;
		out[length++] = character;
	}
	return false;
}
