/* SPDX-License-Identifier: Apache-2.0
 *
 * What is in use: memory, processes, time.  The figures are the card's own, shared by all processes.
 */
#define _GNU_SOURCE
#include <time.h>

#include "nvml.h"

static uint64_t used_bytes(uint32_t gpu)
{
	sim_machine_lock();
	sim_sweep(true);
	uint64_t used = sim_gpu_used(gpu);
	sim_machine_unlock();
	return used;
}

/* Here the driver's own part counts as used; the second version of the call tells it apart. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	NVML_DEVICE(nvmlDeviceGetMemoryInfo);
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	uint64_t used = used_bytes(gpu) + model->reserved_bytes;
	*memory = (nvmlMemory_t){ .total = model->total_bytes, .free = model->total_bytes - used, .used = used };
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	NVML_DEVICE(nvmlDeviceGetMemoryInfo_v2);
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	uint64_t used = used_bytes(gpu);
	memory->total = model->total_bytes;
	memory->reserved = model->reserved_bytes;
	memory->used = used;
	memory->free = model->total_bytes - model->reserved_bytes - used;
	return NVML_SUCCESS;
}

struct process {
	unsigned int pid;
	unsigned long long bytes;
	uint32_t slot;
};

/* The processes that have a context on the card, in the caller's pid namespace. */
static unsigned int processes(uint32_t gpu, struct process *out)
{
	unsigned int n = 0;

	sim_machine_lock();
	sim_sweep(true);
	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++) {
		const struct sim_proc *p = &sim_machine->procs[i];
		if (p->kind != SIM_SLOT_CUDA || !p->contexts[gpu])
			continue;
		out[n++] = (struct process){ (unsigned int)sim_slot_pid(i), sim_proc_used(i, gpu), i };
	}
	sim_machine_unlock();
	return n;
}

/* The size protocol: *count is the room on entry and the number on return. */
static nvmlReturn_t list_v1(uint32_t gpu, unsigned int *count, nvmlProcessInfo_v1_t *infos, bool none)
{
	struct process found[SIM_MAX_PROCS];

	if (!count || (*count && !infos))
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int room = *count, n = none ? 0 : processes(gpu, found);
	*count = n;
	if (room < n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++)
		infos[i] = (nvmlProcessInfo_v1_t){ found[i].pid, found[i].bytes };
	return NVML_SUCCESS;
}

static nvmlReturn_t list_v2(uint32_t gpu, unsigned int *count, nvmlProcessInfo_v2_t *infos, bool none)
{
	struct process found[SIM_MAX_PROCS];

	if (!count || (*count && !infos))
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int room = *count, n = none ? 0 : processes(gpu, found);
	*count = n;
	if (room < n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++)
		infos[i] = (nvmlProcessInfo_v2_t){ found[i].pid, found[i].bytes, UINT32_MAX, UINT32_MAX };
	return NVML_SUCCESS;
}

#define LISTS(kind, none)                                                                                                  \
	SIM_EXPORT nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses(                                                     \
		nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)                                     \
	{                                                                                                                  \
		NVML_DEVICE(nvmlDeviceGet##kind##RunningProcesses);                                                        \
		return list_v1(gpu, count, infos, none);                                                                   \
	}                                                                                                                  \
	SIM_EXPORT nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v2(                                                  \
		nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)                                     \
	{                                                                                                                  \
		NVML_DEVICE(nvmlDeviceGet##kind##RunningProcesses_v2);                                                     \
		return list_v2(gpu, count, infos, none);                                                                   \
	}                                                                                                                  \
	SIM_EXPORT nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v3(                                                  \
		nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)                                     \
	{                                                                                                                  \
		NVML_DEVICE(nvmlDeviceGet##kind##RunningProcesses_v3);                                                     \
		return list_v2(gpu, count, infos, none);                                                                   \
	}
LISTS(Compute, false)
LISTS(Graphics, true)
LISTS(MPSCompute, true)

static void bring_up_to_date(uint32_t gpu, uint64_t now)
{
	sim_sweep(true);
	sim_gpu_advance(gpu, now);
}

/* A slow average, and nothing at all in the first second of a process' work, as on real cards. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(
	nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count, unsigned long long since)
{
	NVML_DEVICE(nvmlDeviceGetProcessUtilization);
	struct process found[SIM_MAX_PROCS];
	struct timespec ts;
	unsigned int n = 0;

	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int running = processes(gpu, found);
	if (!samples || !*count) {
		*count = running;
		return running ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_ERROR_NOT_FOUND;
	}
	clock_gettime(CLOCK_REALTIME, &ts);
	unsigned long long stamp = (unsigned long long)ts.tv_sec * 1000000ull + (unsigned long long)ts.tv_nsec / 1000;
	sim_machine_lock();
	uint64_t now = sim_now();
	bring_up_to_date(gpu, now);
	for (unsigned int i = 0; i < running && n < *count && stamp > since; i++) {
		uint64_t first = sim_machine->procs[found[i].slot].first_busy_ns[gpu];
		if (!first || now - first < 1000000000ull)
			continue;
		uint32_t busy = sim_proc_utilisation(found[i].slot, gpu, now);
		samples[n++] = (nvmlProcessUtilizationSample_t){ found[i].pid, stamp, busy, busy / 2, 0, 0 };
	}
	sim_machine_unlock();
	*count = n;
	return n ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

typedef struct { unsigned int gpu, memory; } utilisation;

SIM_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, utilisation *out)
{
	NVML_DEVICE(nvmlDeviceGetUtilizationRates);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_machine_lock();
	uint64_t now = sim_now();
	bring_up_to_date(gpu, now);
	out->gpu = sim_gpu_utilisation(gpu, now);
	out->memory = out->gpu / 2;
	sim_machine_unlock();
	return NVML_SUCCESS;
}

static uint32_t busy_percent(uint32_t gpu)
{
	sim_machine_lock();
	uint64_t now = sim_now();
	bring_up_to_date(gpu, now);
	uint32_t busy = sim_gpu_utilisation(gpu, now);
	sim_machine_unlock();
	return busy;
}

/* Plausible figures that follow the load. */
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
	bring_up_to_date(gpu, now);
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
