/* SPDX-License-Identifier: Apache-2.0
 *
 * The quota of one card: the rule that names it most closely, and the amounts that the rule allows.
 */
#include <string.h>

#include "quota/quota.h"
#include "quota/quota_text.h"

#define MIB (1024u * 1024u)

/* Past "GPU-", "MIG-" or "MIG-GPU-": callers that know a device by its 16 bytes cannot tell which it is. */
static const char *uuid_digits(const char *uuid)
{
	if (strncmp(uuid, "MIG-", 4) == 0)
		uuid += 4;
	if (strncmp(uuid, "GPU-", 4) == 0)
		uuid += 4;
	return uuid;
}

static bool uuid_matches(const char *rule, const char *card)
{
	const char *want = uuid_digits(rule), *have = uuid_digits(card);

	/* "MIG-GPU-<card>/7/0" names a part of the card, not the card. */
	if (strchr(have, '/') && strncmp(rule, "MIG-", 4) != 0)
		return false;
	for (; *want; want++, have++) {
		if (gl_lower(*have) != *want)
			return false;
	}
	return true;
}

static const struct gl_quota_rule *rule_for(const struct gl_quota_rule *rules, uint32_t count, int index,
					    const char *uuid)
{
	const struct gl_quota_rule *best = NULL;

	for (uint32_t i = 0; i < count && i < GL_QUOTA_RULES; i++) {
		const struct gl_quota_rule *rule = &rules[i];
		bool match = rule->select == GL_SELECT_ALL;

		if (rule->select == GL_SELECT_INDEX)
			match = index >= 0 && rule->index == (uint32_t)index;
		else if (rule->select == GL_SELECT_UUID)
			match = uuid && uuid_matches(rule->uuid, uuid);
		if (match && (!best || rule->select > best->select))
			best = rule;
	}
	return best;
}

/* amount thousandths of a percent of the card, down to a whole MiB but never to nothing. */
static uint64_t share_of_card(uint64_t amount, uint64_t card_bytes)
{
	uint64_t bytes = card_bytes / 100000 * amount + card_bytes % 100000 * amount / 100000;

	if (amount >= 100000)
		return card_bytes;
	return bytes >= MIB ? bytes / MIB * MIB : bytes + (bytes == 0);
}

int gl_quota_memory_for(const struct gl_quota *quota, int index, const char *uuid, uint64_t card_bytes, uint64_t *bytes)
{
	const struct gl_quota_rule *rule = rule_for(quota->memory, quota->memory_rules, index, uuid);

	*bytes = 0;
	if (quota->error[0])
		return 1;
	if (quota->memory_rules == 0)
		return 0;
	if (rule)
		*bytes = rule->percent ? share_of_card(rule->amount, card_bytes) : rule->amount;
	if (*bytes > card_bytes)
		*bytes = card_bytes;
	return 1;
}

uint32_t gl_quota_compute_for(const struct gl_quota *quota, int index, const char *uuid)
{
	const struct gl_quota_rule *rule = rule_for(quota->compute, quota->compute_rules, index, uuid);

	if (quota->error[0])
		return 1;
	if (quota->compute_rules == 0)
		return 100;
	return rule ? (uint32_t)rule->amount : 1;
}

void gl_uuid_text(const uint8_t uuid[16], char out[41])
{
	static const char hex[] = "0123456789abcdef";
	char *at = out;

	memcpy(at, "GPU-", 4);
	at += 4;
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		*at++ = hex[uuid[i] >> 4];
		*at++ = hex[uuid[i] & 15];
	}
	*at = '\0';
}
