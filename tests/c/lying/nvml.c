/* SPDX-License-Identifier: Apache-2.0
 *
 * An NVML that does not keep to the caller's room: it fills it and then says that there is more.  All else is handed
 * on to the library that REAL_NVML names.  Built under NVML's name and found first.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

enum { LIE = 50 };

static void *real(const char *name)
{
	static void *library;
	if (!library)
		library = dlmopen(LM_ID_NEWLM, getenv("REAL_NVML"), RTLD_NOW);
	return library ? dlsym(library, name) : NULL;
}

typedef long any(long, long, long, long);

#define HANDED_ON(name)                                                        \
	long name(long a, long b, long c, long d)                              \
	{                                                                      \
		any *f = (any *)real(#name);                                   \
		return f ? (int)f(a, b, c, d) : NVML_ERROR_FUNCTION_NOT_FOUND; \
	}
HANDED_ON(nvmlInit)
HANDED_ON(nvmlInitWithFlags)
HANDED_ON(nvmlInit_v2)
HANDED_ON(nvmlShutdown)
HANDED_ON(nvmlErrorString)
HANDED_ON(nvmlDeviceGetCount_v2)
HANDED_ON(nvmlDeviceGetHandleByIndex_v2)
HANDED_ON(nvmlDeviceGetHandleByUUID)
HANDED_ON(nvmlDeviceGetUUID)
HANDED_ON(nvmlDeviceGetIndex)
HANDED_ON(nvmlDeviceGetMemoryInfo)
HANDED_ON(nvmlDeviceGetMemoryInfo_v2)
HANDED_ON(nvmlDeviceGetComputeRunningProcesses_v3)

/* Rows of the caller's own pid, so that a filter keeps them. */
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
	const char *pid = getenv("LIE_ABOUT");
	(void)device;
	for (unsigned int i = 0; infos && i < *count; i++)
		infos[i] = (nvmlProcessInfo_v2_t){.pid = (unsigned int)atoi(pid ? pid : "1"), .usedGpuMemory = 1};
	*count += LIE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
					     unsigned int *count, unsigned long long since)
{
	(void)device, (void)since;
	for (unsigned int i = 0; samples && i < *count; i++)
		samples[i] = (nvmlProcessUtilizationSample_t){.pid = 1};
	*count += LIE;
	return NVML_SUCCESS;
}
