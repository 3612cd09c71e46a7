/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: whatever a daemon answers, in whatever pieces, the parser stays inside its buffers, says the same
 * of the same bytes however they are cut, and keeps only values that are safe to use; and whatever a process is called,
 * its registration is a JSON string.
 * Input: the first byte says how the rest is cut.
 */
#include "daemon/http.h"

#include <stdlib.h>
#include <string.h>

static void must(int truth)
{
	if (!truth)
		abort();
}

static int read_in_pieces(struct gl_answer *answer, const uint8_t *data, size_t size, size_t piece)
{
	int r = 0;
	gl_answer_begin(answer);
	for (size_t at = 0; at < size && r == 0; at += piece) {
		size_t n = size - at < piece ? size - at : piece;
		/* A block of its own, so that reading past it is seen. */
		char *copy = malloc(n);
		must(copy != NULL);
		memcpy(copy, data + at, n);
		r = gl_answer_feed(answer, copy, n);
		free(copy);
	}
	return r ? r : gl_answer_end(answer);
}

static void must_be_a_name(const char *text, size_t size)
{
	must(memchr(text, 0, size) != NULL && text[0] != '.');
	for (; *text; text++)
		must((*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') || (*text >= '0' && *text <= '9') ||
		     strchr("-_.", *text));
}

static void check(const struct gl_answer *a, int r)
{
	must(r == 1 || r == -1);
	must(r == 1 ? a->status >= 200 && a->status <= 599 : a->wrong != NULL);
	must(a->body_bytes <= (size_t)GL_HTTP_MAX_BODY_BYTES + 512 && a->head_bytes <= GL_HTTP_MAX_HEAD_BYTES + 1);
	must_be_a_name(a->worker, sizeof a->worker);
	must_be_a_name(a->tenant, sizeof a->tenant);
	must_be_a_name(a->usage, sizeof a->usage);
	must_be_a_name(a->policy, sizeof a->policy);
	must_be_a_name(a->source, sizeof a->source);
	must_be_a_name(a->command, sizeof a->command);
	must(memchr(a->error, 0, sizeof a->error) != NULL);
	for (const char *p = a->error; *p; p++)
		must(*p >= 0x20 && *p <= 0x7e);
}

/* One JSON string and nothing after it. */
static void check_json(const char *text)
{
	must(*text++ == '"');
	for (; *text != '"'; text++) {
		must((unsigned char)*text >= 0x20 && (unsigned char)*text < 0x7f);
		if (*text == '\\')
			must(*++text == 'u' || *text == '"' || *text == '\\');
	}
	must(text[1] == 0);
}

static void write_text(const uint8_t *data, size_t size)
{
	char name[512], json[3200], small[40];
	struct gl_out out;
	memcpy(name, data, size < sizeof name ? size : sizeof name - 1);
	name[size < sizeof name ? size : sizeof name - 1] = 0;
	gl_out_begin(&out, json, sizeof json);
	gl_out_json(&out, name);
	must(!out.full);
	check_json(json);
	gl_out_begin(&out, small, sizeof small);
	gl_http_request(&out, "POST", "/", "", json);
	must(out.full && out.length < sizeof small && strlen(small) == out.length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct gl_answer whole, cut;
	if (size == 0)
		return 0;
	int first = read_in_pieces(&whole, data + 1, size - 1, size), second;
	check(&whole, first);
	second = read_in_pieces(&cut, data + 1, size - 1, 1 + data[0] % 7);
	must(first == second && whole.status == cut.status && whole.host_pid == cut.host_pid);
	must(whole.command_number == cut.command_number && strcmp(whole.command, cut.command) == 0);
	must(strcmp(whole.worker, cut.worker) == 0 && strcmp(whole.error, cut.error) == 0);
	write_text(data + 1, size - 1);
	return 0;
}
