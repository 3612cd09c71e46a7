/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing requests; see http.h.
 */
#include <string.h>

#include "daemon/http.h"

static void put(struct gl_out *out, char c)
{
	if (out->length + 1 >= out->size) {
		out->full = true;
		return;
	}
	out->text[out->length++] = c;
	out->text[out->length] = 0;
}

void gl_out_begin(struct gl_out *out, char *buffer, size_t size)
{
	*out = (struct gl_out){.text = buffer, .size = size};
	buffer[0] = 0;
}

void gl_out_text(struct gl_out *out, const char *text)
{
	while (*text)
		put(out, *text++);
}

void gl_out_number(struct gl_out *out, uint64_t number)
{
	char digits[20];
	int n = 0;
	do
		digits[n++] = (char)('0' + number % 10);
	while (number /= 10);
	while (n)
		put(out, digits[--n]);
}

void gl_out_json(struct gl_out *out, const char *text)
{
	static const char hex[] = "0123456789abcdef";
	put(out, '"');
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		if (c == '"' || c == '\\')
			put(out, '\\');
		if (c < 0x20) {
			gl_out_text(out, "\\u00");
			put(out, hex[c >> 4]);
			put(out, hex[c & 15]);
		} else {
			put(out, c < 0x7f ? (char)c : '?');
		}
	}
	put(out, '"');
}

/* Each request has a connection of its own, so nothing can be left over from the one before. */
void gl_http_request(struct gl_out *out, const char *method, const char *path, const char *token, const char *body)
{
	gl_out_text(out, method);
	gl_out_text(out, " ");
	gl_out_text(out, path);
	gl_out_text(out, " HTTP/1.1\r\nHost: gpulimit\r\nConnection: close\r\n");
	if (*token) {
		gl_out_text(out, "Authorization: Bearer ");
		gl_out_text(out, token);
		gl_out_text(out, "\r\n");
	}
	if (body) {
		gl_out_text(out, "Content-Type: application/json\r\nContent-Length: ");
		gl_out_number(out, strlen(body));
		gl_out_text(out, "\r\n");
	}
	gl_out_text(out, "\r\n");
	if (body)
		gl_out_text(out, body);
}
