/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: finding a member of an object.  Whatever the text, nothing beyond its end is read; whatever another
 * member holds as a string, and a pod's owner chooses many, the one behind it is found.
 */
#include "container/json.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int truth)
{
	if (!truth)
		abort();
}

/* Quotes as runtimes do: what may not stand in a string becomes an escape. */
static size_t quoted(char *out, const uint8_t *data, size_t size)
{
	size_t length = 0;

	out[length++] = '"';
	for (size_t i = 0; i < size; i++) {
		if (data[i] < 0x20 || data[i] == '&')
			length += (size_t)sprintf(out + length, "\\u%04x", data[i]);
		else {
			if (data[i] == '"' || data[i] == '\\')
				out[length++] = '\\';
			out[length++] = (char)data[i];
		}
	}
	out[length++] = '"';
	return length;
}

static void found_behind(const uint8_t *data, size_t size)
{
	static const char before[] = "{\"a\": [", after[] = ", {\"root\": 1}], \"root\" : \"b\"}";
	char *text = malloc(sizeof before + 6 * size + 2 + sizeof after), back[2];
	size_t length = sizeof before - 1;

	must(text != NULL);
	memcpy(text, before, length);
	length += quoted(text + length, data, size);
	memcpy(text + length, after, sizeof after);
	const char *value = json_member(text, "root");
	must(value && json_text(value, back, sizeof back) && strcmp(back, "b") == 0);
	free(text);
}

static void taken_back(const uint8_t *data, size_t size)
{
	char *text = malloc(6 * size + 3), *back = malloc(size + 1);

	must(text && back);
	text[quoted(text, data, size)] = 0;
	if (!memchr(data, 0, size)) {
		must(json_text(text, back, size + 1) && memcmp(back, data, size) == 0 && strlen(back) == size);
		must(size == 0 || !json_text(text, back, size));
	}
	free(back);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t none;
	char *text = malloc(size + 1), small[8];

	must(text != NULL);
	if (size)
		memcpy(text, data, size);
	text[size] = 0;
	const char *value = json_member(text, "root");
	if (value) {
		must(value > text && value <= text + size);
		if (json_text(value, small, sizeof small))
			must(strlen(small) < sizeof small);
		json_member(value, "path");
	}
	free(text);
	found_behind(size ? data : &none, size);
	taken_back(size ? data : &none, size);
	return 0;
}
