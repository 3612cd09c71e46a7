/* SPDX-License-Identifier: Apache-2.0
 *
 * See http.h.  The parser collects lines in a fixed buffer and counts the bytes of bodies, so it can stop and resume at any
 * byte.  It rejects every input that it does not fully understand: Content-Length together with chunks, a length with a
 * sign, a value that is too long or has characters that are not allowed.
 */
#include "daemon/http.h"

#include <string.h>

static void fail(struct gl_answer *a, const char *why)
{
	a->state = GL_HTTP_BAD;
	a->wrong = why;
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
}

/* The value after "name:" without blanks round it (the line is cut), or NULL: another header. */
static char *value_of(char *line, const char *name)
{
	while (*name && lower(*line) == lower(*name))
		line++, name++;
	if (*name || *line != ':')
		return NULL;
	for (line++; *line == ' ' || *line == '\t'; line++)
		;
	size_t length = strlen(line);
	while (length && (line[length - 1] == ' ' || line[length - 1] == '\t'))
		line[--length] = 0;
	return line;
}

static bool decimal(const char *text, uint64_t most, uint64_t *out)
{
	uint64_t n = 0;
	if (!*text)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || n > (most - (uint64_t)(*text - '0')) / 10)
			return false;
		n = n * 10 + (uint64_t)(*text - '0');
	}
	*out = n;
	return true;
}

static bool is_name_letter(char c)
{
	char l = lower(c);
	return (l >= 'a' && l <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

/* Copies a value if it fits and has only allowed characters.  Names become parts of paths, so they must not begin with a dot. */
static bool take(char *out, size_t size, const char *value, bool name)
{
	size_t length = strlen(value);
	if (length >= size || (name && (*value == '.' || !*value)))
		return false;
	for (const char *p = value; *p; p++)
		if (name ? !is_name_letter(*p) : *p < 0x20 || *p > 0x7e)
			return false;
	memcpy(out, value, length + 1);
	return true;
}

/* "N NAME" */
static bool take_command(struct gl_answer *a, char *value)
{
	char *space = strchr(value, ' ');
	if (!space)
		return false;
	*space = 0;
	return decimal(value, UINT64_MAX, &a->command_number) && take(a->command, sizeof a->command, space + 1, true);
}

/* Reads one header that the client uses; true if it was this one. */
static bool keep(struct gl_answer *a, const char *header, char *out, size_t size, bool name)
{
	char *value = value_of(a->line, header);
	if (value && !take(out, size, value, name))
		fail(a, header);
	return value != NULL;
}

static void number_header(struct gl_answer *a, char *value)
{
	uint64_t n;
	if (!decimal(value, UINT32_MAX, &n))
		fail(a, "Gpulimit-Host-Pid");
	else
		a->host_pid = (uint32_t)n;
}

static void length_header(struct gl_answer *a, const char *value)
{
	uint64_t n;
	if (!decimal(value, GL_HTTP_MAX_BODY_BYTES, &n) || (a->has_length && n != a->left)) {
		fail(a, "Content-Length");
		return;
	}
	a->has_length = true;
	a->left = n;
}

static void coding_header(struct gl_answer *a, char *value)
{
	for (char *p = value; *p; p++)
		*p = lower(*p);
	if (strcmp(value, "chunked") != 0 || a->chunked)
		fail(a, "Transfer-Encoding");
	a->chunked = true;
}

static void header(struct gl_answer *a)
{
	char *value;
	if (a->line[0] == ' ' || a->line[0] == '\t' || !strchr(a->line, ':')) {
		fail(a, "a header");
		return;
	}
	if ((value = value_of(a->line, "Content-Length")))
		length_header(a, value);
	else if ((value = value_of(a->line, "Transfer-Encoding")))
		coding_header(a, value);
	else if ((value = value_of(a->line, "Gpulimit-Host-Pid")))
		number_header(a, value);
	else if ((value = value_of(a->line, "Gpulimit-Command"))) {
		if (!take_command(a, value))
			fail(a, "Gpulimit-Command");
	} else if (!keep(a, "Gpulimit-Worker", a->worker, sizeof a->worker, true) &&
		   !keep(a, "Gpulimit-Tenant", a->tenant, sizeof a->tenant, true) &&
		   !keep(a, "Gpulimit-Usage", a->usage, sizeof a->usage, true) &&
		   !keep(a, "Gpulimit-Policy", a->policy, sizeof a->policy, true) &&
		   !keep(a, "Gpulimit-Source", a->source, sizeof a->source, true))
		(void)keep(a, "Gpulimit-Error", a->error, sizeof a->error, false);
}

/* "HTTP/1.x NNN reason" */
static void status(struct gl_answer *a)
{
	const char *l = a->line;
	bool good = strncmp(l, "HTTP/1.", 7) == 0 && (l[7] == '0' || l[7] == '1') && l[8] == ' ';
	for (int i = 9; good && i < 12; i++)
		good = l[i] >= '0' && l[i] <= '9';
	if (!good || (l[12] && l[12] != ' ') || l[9] < '1' || l[9] > '5') {
		fail(a, "the status line");
		return;
	}
	a->status = (l[9] - '0') * 100 + (l[10] - '0') * 10 + (l[11] - '0');
	a->state = GL_HTTP_HEADERS;
}

static void headers_end(struct gl_answer *a)
{
	if (a->chunked && a->has_length)
		fail(a, "Content-Length beside Transfer-Encoding");
	else if (a->status < 200)
		a->state = GL_HTTP_STATUS; /* an interim answer; the head's bound limits how many */
	else if (a->status == 204 || a->status == 304 || (a->has_length && a->left == 0))
		a->state = GL_HTTP_DONE;
	else
		a->state = a->chunked ? GL_HTTP_CHUNK_SIZE : a->has_length ? GL_HTTP_BODY : GL_HTTP_UNTIL_END;
}

static int hex(char c)
{
	c = lower(c);
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void chunk_size(struct gl_answer *a)
{
	uint64_t n = 0;
	const char *p = a->line;
	for (; hex(*p) >= 0 && n <= GL_HTTP_MAX_BODY_BYTES; p++)
		n = n * 16 + (uint64_t)hex(*p);
	if (p == a->line || n > GL_HTTP_MAX_BODY_BYTES || (*p && *p != ';' && *p != ' '))
		fail(a, "a chunk's size");
	a->left = n;
	if (a->state != GL_HTTP_BAD)
		a->state = n ? GL_HTTP_CHUNK : GL_HTTP_TRAILERS;
}

static void line(struct gl_answer *a)
{
	bool empty = a->line_length == 0;
	a->line[a->line_length] = 0;
	a->line_length = 0;
	if (memchr(a->line, '\r', strlen(a->line)))
		fail(a, "a carriage return");
	else if (a->state == GL_HTTP_STATUS)
		status(a);
	else if (a->state == GL_HTTP_HEADERS)
		empty ? headers_end(a) : header(a);
	else if (a->state == GL_HTTP_CHUNK_SIZE)
		chunk_size(a);
	else if (a->state == GL_HTTP_CHUNK_END)
		empty ? (void)(a->state = GL_HTTP_CHUNK_SIZE) : fail(a, "the end of a chunk");
	else if (empty)
		a->state = GL_HTTP_DONE; /* trailers are ignored */
}

/* Accepts a header line that is too long only if this client does not use the header. */
static void long_line(struct gl_answer *a)
{
	static const char ours[][18] = {"content-length", "transfer-encoding", "gpulimit-"};
	bool known = a->state != GL_HTTP_HEADERS && a->state != GL_HTTP_TRAILERS;
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
		size_t n = 0;
		while (ours[i][n] && lower(a->line[n]) == ours[i][n])
			n++;
		known |= !ours[i][n];
	}
	a->line_length = 0;
	a->too_long = false;
	if (known)
		fail(a, "a line that is too long");
}

static void head_byte(struct gl_answer *a, char c)
{
	if (++a->head_bytes > GL_HTTP_MAX_HEAD_BYTES)
		fail(a, "headers without end");
	else if (c == 0)
		fail(a, "a zero byte");
	else if (c != '\n' && a->line_length + 1 >= sizeof a->line)
		a->too_long = true;
	else if (c != '\n')
		a->line[a->line_length++] = c;
	else if (a->too_long)
		long_line(a);
	else {
		if (a->line_length && a->line[a->line_length - 1] == '\r')
			a->line_length--;
		line(a);
	}
}

/* Counts bytes of the body; returns how many of the input belong to it. */
static size_t body_bytes(struct gl_answer *a, size_t size)
{
	bool until_end = a->state == GL_HTTP_UNTIL_END;
	size_t n = until_end || size < a->left ? size : (size_t)a->left;
	a->body_bytes += n;
	if (a->body_bytes > GL_HTTP_MAX_BODY_BYTES)
		fail(a, "a body without end");
	else if (!until_end && (a->left -= n) == 0)
		a->state = a->state == GL_HTTP_CHUNK ? GL_HTTP_CHUNK_END : GL_HTTP_DONE;
	return n;
}

static int result(const struct gl_answer *a)
{
	return a->state == GL_HTTP_BAD ? -1 : a->state == GL_HTTP_DONE;
}

void gl_answer_begin(struct gl_answer *answer)
{
	memset(answer, 0, sizeof *answer);
}

int gl_answer_feed(struct gl_answer *a, const char *data, size_t size)
{
	while (size && !result(a)) {
		size_t n = 1;
		if (a->state == GL_HTTP_BODY || a->state == GL_HTTP_UNTIL_END || a->state == GL_HTTP_CHUNK)
			n = body_bytes(a, size);
		else
			head_byte(a, *data);
		data += n;
		size -= n;
	}
	return result(a);
}

int gl_answer_end(struct gl_answer *a)
{
	if (a->state == GL_HTTP_UNTIL_END)
		a->state = GL_HTTP_DONE;
	else if (!result(a))
		fail(a, "an end in the middle");
	return result(a);
}
