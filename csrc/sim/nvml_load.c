/* SPDX-License-Identifier: Apache-2.0
 *
 * Plausible figures that follow the load: temperature, power, energy, clocks.
 */
#define _GNU_SOURCE
#include "nvml.h"

static uint32_t busy_percent(uint32_t gpu)
{
	sim_machine_lock();
	uint64_t now = sim_now();
	sim_sweep(true);
	sim_gpu_advance(gpu, now);
	uint32_t busy = sim_gpu_utilisation(gpu, now);
	sim_machine_unlock();
	return busy;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius)
{
	NVML_DEVICE(nvmlDeviceGetTemperature);
	if (!celsius || sensor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*celsius = 30 + busy_percent(gpu) * 3 / 10;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
	NVML_DEVICE(nvmlDeviceGetPowerUsage);
	if (!milliwatts)
		return NVML_ERROR_INVALID_ARGUMENT;
	*milliwatts = 75000 + busy_percent(gpu) * 6000;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
	NVML_DEVICE(nvmlDeviceGetTotalEnergyConsumption);
	if (!millijoules)
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_machine_lock();
	uint64_t now = sim_now();
	sim_sweep(true);
	sim_gpu_advance(gpu, now);
	*millijoules = now / 1000000 * 75 / 1000 + sim_machine->gpus[gpu].busy_ns / 1000000 * 600 / 1000;
	sim_machine_unlock();
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *mhz)
{
	NVML_DEVICE(nvmlDeviceGetClockInfo);
	static const unsigned int busy[] = { 1980, 1980, 2619, 1545 }, idle[] = { 345, 345, 2619, 765 };

	if (!mhz || type < 0 || type > 3)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mhz = busy_percent(gpu) ? busy[type] : idle[type];
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	NVML_ENTER(nvmlSystemGetProcessName);
	nvmlReturn_t result = NVML_ERROR_NOT_FOUND;

	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_machine_lock();
	for (uint32_t i = 0; i < SIM_MAX_PROCS && result; i++) {
		if (sim_slot_pid(i) != (int)pid || !pid)
			continue;
		unsigned int k = 0;
		for (; k + 1 < length && sim_machine->procs[i].name[k]; k++)
			name[k] = sim_machine->procs[i].name[k];
		name[k] = 0;
		result = NVML_SUCCESS;
	}
	sim_machine_unlock();
	return result;
}
