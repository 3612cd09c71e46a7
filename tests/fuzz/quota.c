/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: any environment either is a quota or is refused with a whole error, and neither ever means "no
 * limit" where one was asked for.  Input: values ended by NUL; the first byte of each says which variable it is for.
 */
#include "quota/quota.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
	"GPULIMIT_MEMORY", "GPULIMIT_COMPUTE", "TENSOR_FUSION_CUDA_MEM_LIMIT", "TENSOR_FUSION_CUDA_UP_LIMIT",
	"CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_7", "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_15",
	"GPULIMIT_REQUEST", "GPULIMIT_WEIGHT", "GPULIMIT_PRIORITY", "GPULIMIT_TENANT",
};
enum { NAMES = sizeof(names) / sizeof(*names) };

struct environment {
	const char *value[NAMES];
};

static const char *look_up(const char *name, void *arg)
{
	struct environment *env = arg;

	for (size_t i = 0; i < NAMES; i++)
		if (strcmp(names[i], name) == 0)
			return env->value[i];
	return NULL;
}

/* A check that stays in every build. */
static void must(int truth)
{
	if (!truth)
		abort();
}

static int asks_for_memory(const struct environment *env)
{
	return env->value[0] || env->value[2] || env->value[4] || env->value[5];
}

static void check_refused(const struct gl_quota *quota)
{
	uint64_t bytes = 1;

	must(quota->error[0] && quota->error_variable[0] && quota->error_reason[0] && quota->error_position > 0);
	must(strlen(quota->error) < sizeof(quota->error));
	for (const char *c = quota->error; *c; c++)
		must(*c >= 0x20 && *c < 0x7f);
	must(gl_quota_memory_for(quota, 0, NULL, UINT64_MAX, &bytes) == 1 && bytes == 0);
	must(gl_quota_compute_for(quota, 0, NULL) == 1);
}

static void check_read(const struct gl_quota *quota, const struct environment *env)
{
	const uint64_t cards[] = {0, 1, 1u << 20, 85520809984u, UINT64_MAX};
	uint64_t bytes;

	must(!quota->error[0] && quota->memory_rules <= GL_QUOTA_RULES && quota->compute_rules <= GL_QUOTA_RULES);
	must(!asks_for_memory(env) == !quota->memory_rules);
	for (uint32_t i = 0; i < quota->memory_rules; i++)
		must(quota->memory[i].amount > 0 && memchr(quota->memory[i].uuid, 0, sizeof(quota->memory[i].uuid)));
	for (int index = -1; index < 17; index++) {
		uint32_t percent = gl_quota_compute_for(quota, index, "GPU-3430f778-7a25-704c-9090-8b0bb2478114");
		must(percent >= 1 && percent <= 100);
		for (size_t i = 0; i < sizeof(cards) / sizeof(*cards); i++)
			if (gl_quota_memory_for(quota, index, "MIG-GPU-3430f778/7/0", cards[i], &bytes))
				must(bytes <= cards[i]);
			else
				must(!asks_for_memory(env));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct environment env = {{NULL}};
	static struct gl_quota quota;
	char *text = malloc(size + 1);

	must(text != NULL);
	memcpy(text, data, size);
	text[size] = '\0';
	for (size_t at = 0; at < size; at += strlen(text + at) + 1)
		env.value[(uint8_t)text[at] % NAMES] = text[at] ? text + at + 1 : text + at;
	memset(&quota, 0xa5, sizeof(quota));
	if (gl_quota_read(&quota, look_up, &env) == 0)
		check_read(&quota, &env);
	else
		check_refused(&quota);
	free(text);
	return 0;
}
