/* SPDX-License-Identifier: Apache-2.0
 *
 * Event sets.  The simulated card has no events to tell, so a wait ends with its timeout.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "nvml.h"

enum { NVML_ERROR_TIMEOUT_ = 10, NVML_ERROR_MEMORY_ = 20 };
typedef struct nvmlEventSet_st *nvmlEventSet_t;
struct nvmlEventSet_st {
	unsigned long long types;
};

SIM_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	NVML_ENTER(nvmlEventSetCreate);
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	return *set ? NVML_SUCCESS : (nvmlReturn_t)NVML_ERROR_MEMORY_;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	NVML_ENTER(nvmlEventSetFree);
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	free(set);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	NVML_DEVICE(nvmlDeviceRegisterEvents);
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	set->types |= types;
	return NVML_SUCCESS;
}

static nvmlReturn_t wait_set(nvmlEventSet_t set, const void *data, unsigned int timeout_ms)
{
	struct timespec ts = { .tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000l };

	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	while (nanosleep(&ts, &ts))
		;
	return (nvmlReturn_t)NVML_ERROR_TIMEOUT_;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, void *data, unsigned int timeout_ms)
{
	NVML_ENTER(nvmlEventSetWait);
	return wait_set(set, data, timeout_ms);
}

SIM_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, void *data, unsigned int timeout_ms)
{
	NVML_ENTER(nvmlEventSetWait_v2);
	return wait_set(set, data, timeout_ms);
}
