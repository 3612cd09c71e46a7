/* SPDX-License-Identifier: Apache-2.0
 *
 * The subset of HTTP/1.1 between library and daemon: writes a request into a buffer, and parses an answer piece by
 * piece.  Pure: no socket, no allocation, bounds everywhere; fuzzed (tests/fuzz/http.c).
 */
#ifndef GL_HTTP_H
#define GL_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

#pragma GCC visibility push(hidden)

/* ---- text put together in a buffer ---- */

/* Always a terminated string; text that does not fit is left out and `full` is set. */
struct gl_out {
	char *text;
	size_t size, length;
	bool full;
};
void gl_out_begin(struct gl_out *out, char *buffer, size_t size);
void gl_out_text(struct gl_out *out, const char *text);
void gl_out_number(struct gl_out *out, uint64_t number);
/* As a JSON string with its quotes.  Bytes beyond ASCII become '?': the kernel may cut a name inside a character. */
void gl_out_json(struct gl_out *out, const char *text);

/* A whole request.  token "": none to show; body NULL: none. */
void gl_http_request(struct gl_out *out, const char *method, const char *path, const char *token, const char *body);

/* ---- an answer ---- */

enum {
	GL_HTTP_LINE_BYTES = 512,          /* longer header lines are skipped, unless the client uses their header */
	GL_HTTP_MAX_HEAD_BYTES = 1 << 14,  /* status line, headers, trailers and chunk sizes together */
	GL_HTTP_MAX_BODY_BYTES = 1 << 20,
};

enum gl_http_state {
	GL_HTTP_STATUS, GL_HTTP_HEADERS, GL_HTTP_BODY, GL_HTTP_UNTIL_END, GL_HTTP_CHUNK_SIZE, GL_HTTP_CHUNK,
	GL_HTTP_CHUNK_END, GL_HTTP_TRAILERS, GL_HTTP_DONE, GL_HTTP_BAD
};

/* The headers that the client uses, "" or 0 if absent; of the body only the length is counted. */
struct gl_answer {
	int status;             /* 100..599; valid once the state is past GL_HTTP_STATUS */
	char worker[64];        /* Gpulimit-Worker: letters, digits, '-', '_', '.' */
	char tenant[64];        /* Gpulimit-Tenant: the same letters */
	char usage[80];         /* Gpulimit-Usage */
	char policy[80];        /* Gpulimit-Policy */
	char source[16];        /* Gpulimit-Source */
	char error[GL_MAX_REASON_BYTES + 1]; /* Gpulimit-Error: printable ASCII */
	char command[24];       /* Gpulimit-Command: N NAME */
	uint64_t command_number;
	uint32_t host_pid;      /* Gpulimit-Host-Pid */
	/* Private to the parser. */
	enum gl_http_state state;
	const char *wrong;      /* GL_HTTP_BAD: why */
	size_t head_bytes, body_bytes;
	uint64_t left;          /* bytes of the body or the chunk to come */
	bool has_length, chunked, too_long;
	size_t line_length;
	char line[GL_HTTP_LINE_BYTES];
};

void gl_answer_begin(struct gl_answer *answer);
/* Takes in the next bytes.  1: complete (further bytes are ignored); 0: more to come; -1: not an answer. */
int gl_answer_feed(struct gl_answer *answer, const char *data, size_t size);
/* The peer has closed.  Returns the same, but never 0: a truncated answer is an error. */
int gl_answer_end(struct gl_answer *answer);

#pragma GCC visibility pop

#endif
