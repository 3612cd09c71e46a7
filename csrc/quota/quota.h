/* SPDX-License-Identifier: Apache-2.0
 *
 * Quotas as people write them.  Pure: no driver, no file, no allocation; the environment comes in through a
 * look-up function.  The shim and the Python side (through cffi) use this one parser, so `gpulimit run` refuses
 * exactly what a preloaded process would refuse.  docs/quotas.md has the forms and the precedence.
 */
#ifndef GL_QUOTA_H
#define GL_QUOTA_H

#include <stdint.h>

#include "layout.h"

/* cffi: begin */
#define GL_QUOTA_RULES 32
#define GL_QUOTA_ERROR_BYTES 320
#define GL_DEFAULT_WEIGHT 100 /* of every tenant without one of its own, whatever its request */

enum gl_select { GL_SELECT_ALL = 0, GL_SELECT_INDEX = 1, GL_SELECT_UUID = 2 };

/* One "device = amount". */
struct gl_quota_rule {
	uint32_t select;        /* enum gl_select */
	uint32_t index;         /* of the GPU in NVML's (PCI) order, as nvidia-smi shows it */
	char uuid[64];          /* "GPU-…" or "MIG-…", lower case after the prefix, or the beginning of one */
	uint64_t amount;        /* bytes, or 1/1000 percent of the card if percent is 1; compute: percent of time */
	uint32_t percent;
	uint32_t reserved;
};

struct gl_quota {
	uint32_t set;              /* any quota or tenant was given: the process is under quota */
	uint32_t memory_rules, compute_rules;
	uint32_t weight;           /* 1..10000, 0: not given, which means GL_DEFAULT_WEIGHT */
	uint32_t priority;         /* enum gl_priority, 0: not given */
	uint32_t request;          /* percent, 0: not given */
	uint32_t memory_wait;      /* seconds that an allocation may wait for memory, 0: not given */
	uint32_t gang_mode;        /* enum gl_gang_mode */
	struct gl_quota_rule memory[32];
	struct gl_quota_rule compute[32];
	char tenant[64];           /* "": the default tenant */
	char gang[64];             /* "off", "auto" or the gang's name; "": not given, which means auto */
	char memory_source[48];    /* variable that gave the memory quota, "" if none */
	char compute_source[48];
	char error[320];           /* "" or one line: variable, value, position and what would be right */
	/* The same in parts. */
	char error_variable[48];
	uint32_t error_position;   /* character in the value, from 1 */
	uint32_t reserved;
	char error_reason[160];
};

/* Returns the value of a variable, or NULL. */
typedef const char *(*gl_lookup)(const char *name, void *arg);

/* Reads all variables into *quota, which need not be initialised.  0, or -1 with quota->error set; such a quota
 * allows nothing: a wrong value never means "no limit". */
int gl_quota_read(struct gl_quota *quota, gl_lookup lookup, void *arg);
/* One memory amount ("4GiB", "512MiB", "1.5G", "50%", bytes) or list ("0=4GiB,GPU-34…=2GiB,*=1GiB") into the rules
 * of *quota (zeroed before the first use), in place of those that it had.  source is named in errors. */
int gl_quota_parse_memory(struct gl_quota *quota, const char *source, const char *text);
int gl_quota_parse_compute(struct gl_quota *quota, const char *source, const char *text);
/* Memory limit of a card.  1 and *bytes set (at most the card's size); 0: no memory quota is given at all.  If rules
 * name other cards but not this one, the limit is 0 bytes.  A rule for the UUID takes precedence over one for the
 * index, and that over "*".  index may be -1 and uuid NULL: not known. */
int gl_quota_memory_for(const struct gl_quota *quota, int index, const char *uuid, uint64_t card_bytes, uint64_t *bytes);
/* Percent of GPU time for a card, 100 without a rule.  If rules name other cards but not this one: 1. */
uint32_t gl_quota_compute_for(const struct gl_quota *quota, int index, const char *uuid);
/* "GPU-8-4-4-4-12" of 16 bytes; out has 41 bytes. */
void gl_uuid_text(const uint8_t uuid[16], char out[41]);
/* cffi: end */

#endif
