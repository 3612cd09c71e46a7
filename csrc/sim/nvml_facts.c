/* SPDX-License-Identifier: Apache-2.0
 *
 * What a card is: names, numbers, modes.  Where the simulated card has nothing to say the answer is
 * NVML_ERROR_NOT_SUPPORTED, as on real cards.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "nvml.h"

static nvmlReturn_t text(char *out, unsigned int length, const char *value)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(value) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, value);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	NVML_ENTER(nvmlSystemGetDriverVersion);
	return text(version, length, sim_machine->driver_version);
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	NVML_ENTER(nvmlSystemGetNVMLVersion);
	char full[48];

	snprintf(full, sizeof(full), "13.%s", sim_machine->driver_version);
	return text(version, length, full);
}

#define CUDA_VERSION(name)                                       \
	SIM_EXPORT nvmlReturn_t name(int *version)               \
	{                                                        \
		NVML_ENTER(name);                                \
		if (!version)                                    \
			return NVML_ERROR_INVALID_ARGUMENT;      \
		*version = (int)sim_machine->cuda_version;       \
		return NVML_SUCCESS;                             \
	}
CUDA_VERSION(nvmlSystemGetCudaDriverVersion)
CUDA_VERSION(nvmlSystemGetCudaDriverVersion_v2)

SIM_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	NVML_DEVICE(nvmlDeviceGetName);
	return text(name, length, model->name);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	NVML_DEVICE(nvmlDeviceGetUUID);
	return text(uuid, length, model->uuid);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	NVML_DEVICE(nvmlDeviceGetSerial);
	char number[24];

	snprintf(number, sizeof(number), "16500230%05u", (unsigned)model->pci_bus);
	return text(serial, length, number);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
	NVML_DEVICE(nvmlDeviceGetVbiosVersion);
	return text(version, length, "00.00.00.00.00");
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	NVML_DEVICE(nvmlDeviceGetCudaComputeCapability);
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = (int)model->cc_major;
	*minor = (int)model->cc_minor;
	return NVML_SUCCESS;
}

struct pci {
	char legacy[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char id[32];
};

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci *pci)
{
	NVML_DEVICE(nvmlDeviceGetPciInfo_v3);
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	*pci = (struct pci){ .bus = (unsigned)model->pci_bus, .device_id = 0x233010de, .subsystem_id = 0x16c110de };
	snprintf(pci->legacy, sizeof(pci->legacy), "0000:%02X:00.0", (unsigned)model->pci_bus & 0xff);
	snprintf(pci->id, sizeof(pci->id), "00000000:%02X:00.0", (unsigned)model->pci_bus & 0xff);
	return NVML_SUCCESS;
}

/* The older forms end after the first name and the numbers. */
static nvmlReturn_t pci_old(const struct sim_model *model, struct pci *pci)
{
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(pci->legacy, sizeof(pci->legacy), "0000:%02X:00.0", (unsigned)model->pci_bus & 0xff);
	pci->domain = pci->device = 0;
	pci->bus = (unsigned)model->pci_bus;
	pci->device_id = 0x233010de;
	pci->subsystem_id = 0x16c110de;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, struct pci *pci)
{
	NVML_DEVICE(nvmlDeviceGetPciInfo);
	return pci_old(model, pci);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, struct pci *pci)
{
	NVML_DEVICE(nvmlDeviceGetPciInfo_v2);
	return pci_old(model, pci);
}

/* One number about a card: `name` answers `value`. */
#define NUMBER(name, type, value)                                        \
	SIM_EXPORT nvmlReturn_t name(nvmlDevice_t device, type *out)     \
	{                                                                \
		NVML_DEVICE(name);                                       \
		if (!out)                                                \
			return NVML_ERROR_INVALID_ARGUMENT;              \
		*out = (type)(value);                                    \
		return NVML_SUCCESS;                                     \
	}
NUMBER(nvmlDeviceGetIndex, unsigned int, sim_nvml_index(gpu))
NUMBER(nvmlDeviceGetMinorNumber, unsigned int, sim_nvml_index(gpu))
NUMBER(nvmlDeviceGetBrand, int, 14)
NUMBER(nvmlDeviceGetArchitecture, unsigned int, model->cc_major >= 9 ? 9 : model->cc_minor == 9 ? 8 : 7)
NUMBER(nvmlDeviceGetPersistenceMode, int, 1)
NUMBER(nvmlDeviceGetComputeMode, int, 0)
NUMBER(nvmlDeviceGetPerformanceState, int, 0)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, 700000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, 700000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, 700000)
NUMBER(nvmlDeviceGetPowerManagementMode, int, 1)
NUMBER(nvmlDeviceGetDisplayMode, int, 0)
NUMBER(nvmlDeviceGetDisplayActive, int, 0)
NUMBER(nvmlDeviceGetAccountingMode, int, 0)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, model->sm_count * 128)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, 5120)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)
NUMBER(nvmlDeviceGetBoardId, unsigned int, model->pci_bus << 8)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 0)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 0)
NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long, 0x18)

/* Two at a time: what holds now and what would after a reset. */
#define PAIR(name, type, now, pending)                                                \
	SIM_EXPORT nvmlReturn_t name(nvmlDevice_t device, type *a, type *b)           \
	{                                                                             \
		NVML_DEVICE(name);                                                    \
		if (!a || !b)                                                         \
			return NVML_ERROR_INVALID_ARGUMENT;                           \
		*a = (now);                                                           \
		*b = (pending);                                                       \
		return NVML_SUCCESS;                                                  \
	}
PAIR(nvmlDeviceGetEccMode, int, 1, 1)
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, unsigned int, 200000, 700000)
PAIR(nvmlDeviceGetGpuOperationMode, int, 0, 0)

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned int *mhz)
{
	NVML_DEVICE(nvmlDeviceGetMaxClockInfo);
	static const unsigned int most[] = { 1980, 1980, 2619, 1545 };

	if (!mhz || type < 0 || type > 3)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mhz = most[type];
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *bar1)
{
	NVML_DEVICE(nvmlDeviceGetBAR1MemoryInfo);
	if (!bar1)
		return NVML_ERROR_INVALID_ARGUMENT;
	*bar1 = (nvmlMemory_t){ .total = 128ull << 30, .free = (128ull << 30) - (2 << 20), .used = 2 << 20 };
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *count)
{
	NVML_DEVICE(nvmlDeviceGetTotalEccErrors);
	(void)type;
	(void)counter;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

/* Asked for by monitors; this card has none of it. */
#define ABSENT(name, ...)                                          \
	SIM_EXPORT nvmlReturn_t name(nvmlDevice_t device, ##__VA_ARGS__) \
	{                                                          \
		NVML_DEVICE(name);                                 \
		return NVML_ERROR_NOT_SUPPORTED;                   \
	}
ABSENT(nvmlDeviceGetFanSpeed, unsigned int *speed __attribute__((unused)))
ABSENT(nvmlDeviceGetSupportedVgpus, unsigned int *n __attribute__((unused)), unsigned int *ids __attribute__((unused)))
ABSENT(nvmlDeviceGetCreatableVgpus, unsigned int *n __attribute__((unused)), unsigned int *ids __attribute__((unused)))
ABSENT(nvmlDeviceGetEncoderUtilization, unsigned int *u __attribute__((unused)), unsigned int *us __attribute__((unused)))
ABSENT(nvmlDeviceGetDecoderUtilization, unsigned int *u __attribute__((unused)), unsigned int *us __attribute__((unused)))
ABSENT(nvmlDeviceGetPcieThroughput, int counter __attribute__((unused)), unsigned int *value __attribute__((unused)))
