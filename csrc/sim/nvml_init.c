/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting and ending NVML, its errors, and finding devices.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml.h"

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;
static struct nvmlDevice_st handles[SIM_MAX_GPUS];

static nvmlReturn_t start(void)
{
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&init_lock);
	if (!sim_attached() && !sim_attach(SIM_SLOT_NVML)) {
		result = NVML_ERROR_UNKNOWN;
	} else {
		for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
			handles[i].gpu = i;
		__atomic_fetch_add(&users, 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&init_lock);
	return result;
}

static bool fault(struct sim_site *site, nvmlReturn_t *result)
{
	return sim_fault_enter(site, result);
}

bool sim_nvml_enter(struct sim_site *site, nvmlReturn_t *result)
{
	if (fault(site, result))
		return true;
	if (__atomic_load_n(&users, __ATOMIC_ACQUIRE))
		return false;
	*result = NVML_ERROR_UNINITIALIZED;
	return true;
}

#define START(name, params)                                      \
	SIM_EXPORT nvmlReturn_t name params                      \
	{                                                        \
		static struct sim_site site = { #name, 0, NULL };\
		nvmlReturn_t result;                             \
		if (!fault(&site, &result))                      \
			result = start();                        \
		sim_fault_leave(&site);                          \
		return result;                                   \
	}
START(nvmlInit, (void))
START(nvmlInit_v2, (void))

SIM_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	static struct sim_site site = { "nvmlInitWithFlags", 0, NULL };
	nvmlReturn_t result;

	(void)flags;
	if (!fault(&site, &result))
		result = start();
	sim_fault_leave(&site);
	return result;
}

SIM_EXPORT nvmlReturn_t nvmlShutdown(void)
{
	NVML_ENTER(nvmlShutdown);
	pthread_mutex_lock(&init_lock);
	if (users)
		users--;
	pthread_mutex_unlock(&init_lock);
	return NVML_SUCCESS;
}

SIM_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const texts[] = {
		"The operation was successful", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
		"Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout",
		"Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
		"GPU requires reset", "The operating system has blocked the request", "RM has detected an NVML/RM version mismatch",
		"In use by another client", "Insufficient Memory", "No data", "vGPU ECC Not Supported", "Insufficient Resources",
		"Frequency Not Supported", "Argument Version Mismatch", "Deprecated", "Not Ready", "GPU Not Found", "Invalid State",
	};

	if (result >= 0 && result < (int)(sizeof(texts) / sizeof(texts[0])))
		return texts[result];
	return "Unknown Error";
}

uint32_t sim_nvml_gpu_at(unsigned int index)
{
	for (uint32_t i = 0; i < sim_machine->ncards; i++)
		if (sim_nvml_index(i) == index)
			return i;
	return UINT32_MAX;
}

unsigned int sim_nvml_index(uint32_t gpu)
{
	unsigned int before = 0;

	if (sim_machine->gpus[gpu].parent != SIM_NO_GPU)
		return sim_machine->gpus[gpu].mig_index;
	for (uint32_t i = 0; i < sim_machine->ncards; i++)
		before += sim_machine->gpus[i].model.pci_bus < sim_machine->gpus[gpu].model.pci_bus;
	return before;
}

nvmlDevice_t sim_nvml_handle(uint32_t gpu)
{
	return &handles[gpu];
}

bool sim_nvml_device(nvmlDevice_t device, uint32_t *gpu)
{
	if ((uintptr_t)device < (uintptr_t)handles || (uintptr_t)device >= (uintptr_t)(handles + sim_machine->ngpus))
		return false;
	*gpu = device->gpu;
	return !__atomic_load_n(&sim_machine->gpus[*gpu].gone, __ATOMIC_RELAXED);
}

void sim_nvml_about(nvmlDevice_t device)
{
	uint32_t gpu;

	if (__atomic_load_n(&users, __ATOMIC_ACQUIRE) && sim_nvml_device(device, &gpu))
		sim_fault_about(sim_nvml_index(gpu));
}

#define COUNT(name)                                              \
	SIM_EXPORT nvmlReturn_t name(unsigned int *count)        \
	{                                                        \
		NVML_ENTER(name);                                \
		if (!count)                                      \
			return NVML_ERROR_INVALID_ARGUMENT;      \
		*count = sim_machine->ncards;                    \
		return NVML_SUCCESS;                             \
	}
COUNT(nvmlDeviceGetCount)
COUNT(nvmlDeviceGetCount_v2)

#define BY_INDEX(name)                                                       \
	SIM_EXPORT nvmlReturn_t name(unsigned int index, nvmlDevice_t *out)  \
	{                                                                    \
		sim_fault_about(index);                                      \
		NVML_ENTER(name);                                            \
		if (!out || index >= sim_machine->ncards)                    \
			return NVML_ERROR_INVALID_ARGUMENT;                  \
		*out = sim_nvml_handle(sim_nvml_gpu_at(index));              \
		return NVML_SUCCESS;                                         \
	}
BY_INDEX(nvmlDeviceGetHandleByIndex)
BY_INDEX(nvmlDeviceGetHandleByIndex_v2)

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
	NVML_ENTER(nvmlDeviceGetHandleByUUID);
	if (!uuid || !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < sim_machine->ngpus; i++) {
		if (sim_machine->gpus[i].gone || strcasecmp(uuid, sim_machine->gpus[i].model.uuid))
			continue;
		*out = sim_nvml_handle(i);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_bus(const char *text, nvmlDevice_t *out)
{
	unsigned int domain, bus, device;

	if (!text || !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sscanf(text, "%x:%x:%x", &domain, &bus, &device) != 3) {
		domain = 0;
		if (sscanf(text, "%x:%x", &bus, &device) != 2)
			return NVML_ERROR_INVALID_ARGUMENT;
	}
	for (uint32_t i = 0; i < sim_machine->ncards; i++) {
		if (domain || device || sim_machine->gpus[i].model.pci_bus != bus)
			continue;
		*out = sim_nvml_handle(i);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *out)
{
	NVML_ENTER(nvmlDeviceGetHandleByPciBusId);
	return by_bus(text, out);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *out)
{
	NVML_ENTER(nvmlDeviceGetHandleByPciBusId_v2);
	return by_bus(text, out);
}
