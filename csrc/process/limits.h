/* SPDX-License-Identifier: Apache-2.0
 *
 * The limits in force on one GPU: what the policy, the tenant and the environment allow.
 */
#ifndef GL_LIMITS_H
#define GL_LIMITS_H

#include "process/process.h"

static inline uint32_t gl_limit_percent(const struct gl_gpu *gpu, const struct gl_policy_device *p)
{
	uint32_t percent = gl_load_relaxed(p ? &p->compute_limit_percent : &gpu->device->compute_limit_percent);
	if (percent < 1 || percent > 100)
		return 1; /* an invalid value in the segment never means "no limit" */
	if (percent == 100 && p && GL_UNLIKELY(gl_load_relaxed(&gl_self.daemon.away))) {
		uint32_t request = gl_load_relaxed(&p->compute_request_percent);
		return request >= 1 && request <= 100 ? request : 100;
	}
	return percent;
}

static inline bool gl_suspended(const struct gl_gpu *gpu, const struct gl_policy_device *p)
{
	return gl_load_relaxed(&gpu->device->suspended) || (p && gl_load_relaxed(&p->suspended));
}

static inline bool gl_shared(const struct gl_policy_device *p)
{
	return p && gl_load_relaxed(&p->shared);
}

#pragma GCC visibility push(hidden)
bool gl_gpu_shared(const struct gl_gpu *gpu);
bool gl_over_limit(const struct gl_gpu *gpu);
#pragma GCC visibility pop

#endif
