/* SPDX-License-Identifier: Apache-2.0
 *
 * Amounts, device names and errors of quota variables.  Arithmetic is exact and checked: "1.5GiB" is an integer
 * number of bytes, rounded down, and what does not fit in 64 bits is an error, never cut.
 */
#include "quota/quota_text.h"

#include <string.h>

#define SHOWN_VALUE 60
#define MIB (1024u * 1024u)
#define UUID_TEXT_BYTES 36
#define MIN_UUID_TEXT_BYTES 4

#define WRITE_MEMORY "write 4GiB, 512MiB, 50% or a number of bytes"
#define WRITE_SHORT "write 4g, 512m, 1024k or a number of bytes"
#define WRITE_DEVICE "write an index such as 0, a UUID such as GPU-3430f778, or *"

/* ---- errors ---- */

void gl_text_append(char *buffer, size_t size, const char *more)
{
	size_t used = strlen(buffer);

	while (*more && used + 1 < size)
		buffer[used++] = *more++;
	buffer[used] = '\0';
}

static void append_number(char *buffer, size_t size, uint32_t value)
{
	char digits[12];
	size_t at = sizeof(digits) - 1;

	digits[at] = '\0';
	do
		digits[--at] = (char)('0' + value % 10);
	while ((value /= 10) != 0);
	gl_text_append(buffer, size, digits + at);
}

/* The value, safe for a terminal or a log: quoted, shortened, printable ASCII only. */
static void append_value(char *buffer, size_t size, const char *value)
{
	static const char hex[] = "0123456789abcdef";
	size_t shown = 0;

	gl_text_append(buffer, size, "\"");
	for (; *value; value++) {
		unsigned char c = (unsigned char)*value;
		char piece[5] = {(char)c, '\0'};

		if (c == '"' || c == '\\')
			memcpy(piece, (char[3]){'\\', (char)c, '\0'}, 3);
		else if (c < 0x20 || c >= 0x7f)
			memcpy(piece, (char[5]){'\\', 'x', hex[c >> 4], hex[c & 15], '\0'}, 5);
		if (shown + strlen(piece) > SHOWN_VALUE) {
			gl_text_append(buffer, size, "...");
			break;
		}
		gl_text_append(buffer, size, piece);
		shown += strlen(piece);
	}
	gl_text_append(buffer, size, "\"");
}

/* Characters, not bytes, up to and including the one at `at`. */
static uint32_t position_of(const char *start, const char *at)
{
	uint32_t position = 1;

	for (; start < at; start++)
		position += ((unsigned char)*start & 0xc0) != 0x80;
	return position;
}

int gl_text_fail(struct gl_text *text, const char *at, const char *reason)
{
	struct gl_quota *quota = text->quota;
	size_t size = sizeof(quota->error);

	quota->error[0] = quota->error_variable[0] = quota->error_reason[0] = '\0';
	quota->error_position = position_of(text->start, at);
	gl_text_append(quota->error_variable, sizeof(quota->error_variable), text->source);
	gl_text_append(quota->error_reason, sizeof(quota->error_reason), reason);
	gl_text_append(quota->error, size, quota->error_variable);
	gl_text_append(quota->error, size, ": ");
	append_value(quota->error, size, text->start);
	gl_text_append(quota->error, size, " at character ");
	append_number(quota->error, size, quota->error_position);
	gl_text_append(quota->error, size, ": ");
	gl_text_append(quota->error, size, reason);
	return -1;
}

/* ---- numbers ---- */

void gl_text_blanks(struct gl_text *text)
{
	while (*text->at == ' ' || *text->at == '\t' || *text->at == '\n' || *text->at == '\r')
		text->at++;
}

int gl_text_whole(struct gl_text *text, uint64_t *value)
{
	const char *first = text->at;

	if (!gl_is_digit(*first)) {
		if (*first == '-')
			return gl_text_fail(text, first, "a quota cannot be negative");
		return gl_text_fail(text, first, *first ? "expected a number" : "a number is missing");
	}
	for (*value = 0; gl_is_digit(*text->at); text->at++) {
		if (__builtin_mul_overflow(*value, 10u, value) ||
		    __builtin_add_overflow(*value, (uint64_t)(*text->at - '0'), value))
			return gl_text_fail(text, first, "the number is too large");
	}
	return 0;
}

/* The digits after a decimal point, [first, last), times scale, rounded down.  Working from the last digit keeps
 * it exact for any number of digits: floor((a + floor(b)) / 10) is floor((a + b) / 10). */
static uint64_t fraction_times(const char *first, const char *last, uint64_t scale)
{
	uint64_t sum = 0;

	while (last > first)
		sum = ((uint64_t)(*--last - '0') * scale + sum) / 10;
	return sum;
}

struct unit {
	char name[4];
	uint64_t bytes;
};

static const struct unit units[] = {
	{"", 1},          {"b", 1},
	{"k", 1ull << 10}, {"ki", 1ull << 10}, {"kib", 1ull << 10}, {"kb", 1000ull},
	{"m", 1ull << 20}, {"mi", 1ull << 20}, {"mib", 1ull << 20}, {"mb", 1000000ull},
	{"g", 1ull << 30}, {"gi", 1ull << 30}, {"gib", 1ull << 30}, {"gb", 1000000000ull},
	{"t", 1ull << 40}, {"ti", 1ull << 40}, {"tib", 1ull << 40}, {"tb", 1000000000000ull},
	{"p", 1ull << 50}, {"pi", 1ull << 50}, {"pib", 1ull << 50}, {"pb", 1000000000000000ull},
};

static bool word_char(char c)
{
	return gl_is_digit(c) || c == '_' || (gl_lower(c) >= 'a' && gl_lower(c) <= 'z');
}

/* The unit at the cursor, or NULL if it is none that the form knows. */
static const struct unit *read_unit(struct gl_text *text, enum gl_amount_form form)
{
	char name[4] = "";
	size_t length = 0;

	for (; word_char(*text->at); text->at++, length++) {
		if (length < sizeof(name) - 1)
			name[length] = gl_lower(*text->at);
	}
	if (length >= sizeof(name))
		return NULL;
	for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
		if (memcmp(units[i].name, name, sizeof(name)) != 0)
			continue;
		if (form == GL_FORM_MEMORY || length == 0)
			return &units[i];
		return form == GL_FORM_MEMORY_SHORT && length == 1 && strchr("kmg", name[0]) ? &units[i] : NULL;
	}
	return NULL;
}

/* ---- amounts ---- */

static int finish_card_percent(struct gl_text *text, const char *first, uint64_t whole, uint64_t thousandths,
			       struct gl_quota_rule *rule)
{
	if (whole < 1 || whole > 100 || (whole == 100 && thousandths > 0))
		return gl_text_fail(text, first, "a share of the card is from 1% to 100%");
	rule->percent = 1;
	rule->amount = whole * 1000 + thousandths;
	return 0;
}

static int read_memory(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rule)
{
	const char *first = text->at, *point, *digits, *digits_end, *unit_at;
	const struct unit *unit;
	uint64_t whole;

	if (gl_text_whole(text, &whole) != 0)
		return -1;
	point = digits = digits_end = text->at;
	if (*point == '.' && form != GL_FORM_BYTES) {
		for (digits = ++text->at; gl_is_digit(*text->at); text->at++)
			;
		digits_end = text->at;
		if (digits == digits_end)
			return gl_text_fail(text, digits, "digits are missing after the point");
	}
	if (form != GL_FORM_BYTES)
		gl_text_blanks(text);
	unit_at = text->at;
	if (*unit_at == '%' && form == GL_FORM_MEMORY) {
		text->at++;
		return finish_card_percent(text, first, whole, fraction_times(digits, digits_end, 1000), rule);
	}
	unit = read_unit(text, form);
	if (!unit && form == GL_FORM_BYTES)
		return gl_text_fail(text, unit_at, "write a whole number of bytes, without a unit");
	if (!unit)
		return gl_text_fail(text, unit_at,
				    form == GL_FORM_MEMORY ? "unknown unit; " WRITE_MEMORY : "unknown unit; " WRITE_SHORT);
	if (unit->bytes == 1 && digits != digits_end)
		return gl_text_fail(text, point, "a number of bytes has no fraction; " WRITE_MEMORY);
	if (__builtin_mul_overflow(whole, unit->bytes, &rule->amount) ||
	    __builtin_add_overflow(rule->amount, fraction_times(digits, digits_end, unit->bytes), &rule->amount))
		return gl_text_fail(text, first, "the amount is too large");
	if (rule->amount == 0)
		return gl_text_fail(text, first, "no memory at all is not a quota; leave the variable unset for no limit");
	/* 16384 meant as MiB would quietly refuse everything. */
	if (!unit->name[0] && rule->amount < MIB)
		return gl_text_fail(text, first, "fewer bytes than 1 MiB; is a unit missing, as in 4GiB or 512m?");
	return 0;
}

static int read_compute(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rule)
{
	const char *first = text->at;

	if (gl_text_whole(text, &rule->amount) != 0)
		return -1;
	if (rule->amount < 1 || rule->amount > 100)
		return gl_text_fail(text, first,
				    "a share of GPU time is a whole number from 1 to 100; 100 is no limit");
	if (form != GL_FORM_COMPUTE)
		return 0;
	gl_text_blanks(text);
	if (*text->at == '%')
		text->at++;
	return 0;
}

int gl_text_amount(struct gl_text *text, enum gl_amount_form form, struct gl_quota_rule *rule)
{
	rule->percent = 0;
	if (form == GL_FORM_COMPUTE || form == GL_FORM_PERCENT)
		return read_compute(text, form, rule);
	return read_memory(text, form, rule);
}

/* ---- devices ---- */

static bool starts_with(const char *at, const char *end, const char *prefix)
{
	for (; *prefix; prefix++, at++) {
		if (at >= end || gl_lower(*at) != *prefix)
			return false;
	}
	return true;
}

/* 1 to 3 digits are an index; 4 and more the beginning of a UUID. */
static bool read_index(const char *at, const char *end, struct gl_quota_rule *rule)
{
	if (end - at < 1 || end - at >= MIN_UUID_TEXT_BYTES)
		return false;
	for (rule->index = 0; at < end; at++) {
		if (!gl_is_digit(*at))
			return false;
		rule->index = rule->index * 10 + (uint32_t)(*at - '0');
	}
	return true;
}

/* Hex digits grouped 8-4-4-4-12, whole or cut short; "/7/0" of an old MIG name may follow the whole. */
static const char *uuid_flaw(const char *at, const char *end)
{
	const char *first = at;

	for (; at < end && at - first < UUID_TEXT_BYTES; at++) {
		ptrdiff_t i = at - first;
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;
		char c = gl_lower(*at);

		if (dash ? c != '-' : !(gl_is_digit(c) || (c >= 'a' && c <= 'f')))
			return at;
	}
	for (; at < end; at++) {
		if (*at != '/' && !gl_is_digit(*at))
			return at;
		if (at - first == UUID_TEXT_BYTES && *at != '/')
			return at;
	}
	return NULL;
}

int gl_text_device(struct gl_text *text, const char *end, struct gl_quota_rule *rule)
{
	const char *first = text->at, *body = first, *flaw;
	const char *prefix = "GPU-";
	size_t used;

	text->at = end;
	memset(rule->uuid, 0, sizeof(rule->uuid));
	rule->index = 0;
	rule->select = GL_SELECT_ALL;
	if (end - first == 1 && *first == '*')
		return 0;
	rule->select = GL_SELECT_INDEX;
	if (read_index(first, end, rule))
		return 0;
	rule->select = GL_SELECT_UUID;
	rule->index = 0;
	if (starts_with(first, end, "mig-gpu-"))
		prefix = "MIG-GPU-";
	else if (starts_with(first, end, "mig-"))
		prefix = "MIG-";
	if (prefix[0] == 'M' || starts_with(first, end, "gpu-"))
		body += strlen(prefix);
	flaw = uuid_flaw(body, end);
	if (flaw || first == end)
		return gl_text_fail(text, flaw ? flaw : first, "not a device; " WRITE_DEVICE);
	if (end - body < MIN_UUID_TEXT_BYTES)
		return gl_text_fail(text, body, "too short for a UUID; give at least 4 of its digits");
	gl_text_append(rule->uuid, sizeof(rule->uuid), prefix);
	used = strlen(rule->uuid);
	if ((size_t)(end - body) >= sizeof(rule->uuid) - used)
		return gl_text_fail(text, body, "too long for a UUID");
	for (; body < end; body++)
		rule->uuid[used++] = gl_lower(*body);
	return 0;
}
