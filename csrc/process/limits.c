/* SPDX-License-Identifier: Apache-2.0
 *
 * The limits in force.
 */
#include "shim.h"
#include "process/limits.h"

uint64_t gl_limit_bytes(const struct gl_gpu *gpu)
{
	const struct gl_policy_device *policy = gl_policy_of(gpu);
	uint64_t limit = gl_load_acquire(policy ? &policy->memory_limit_bytes : &gpu->device->memory_limit_bytes);
	if (gpu->own_limit_bytes < limit)
		limit = gpu->own_limit_bytes;
	return limit < gpu->total_bytes ? limit : gpu->total_bytes;
}

bool gl_over_limit(const struct gl_gpu *gpu)
{
	return gl_charged_bytes(gpu->index) > gl_limit_bytes(gpu);
}

uint32_t gl_compute_percent(const struct gl_gpu *gpu)
{
	return gl_limit_percent(gpu, gl_policy_of(gpu));
}

bool gl_gpu_shared(const struct gl_gpu *gpu)
{
	return gl_shared(gl_policy_of(gpu));
}
