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
	for (uint32_t i = sim_machine->ncards; i < sim_machine->ngpus; i++)
		if (sim_machine->gpus[i].parent == gpu)
			used += sim_gpu_used(i);
	for (uint32_t i = 0; i < SIM_MAX_VGPUS; i++)
		if (sim_machine->vgpus[i].id && sim_machine->vgpus[i].card == gpu)
			used += sim_machine->vgpus[i].used_bytes;
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
	unsigned int gpu_instance, compute_instance;
};

static unsigned int add_processes(uint32_t gpu, struct process *out, unsigned int n)
{
	const struct sim_gpu *g = &sim_machine->gpus[gpu];

	for (uint32_t i = 0; i < SIM_MAX_PROCS && n < SIM_MAX_PROCS; i++) {
		const struct sim_proc *p = &sim_machine->procs[i];
		int pid = p->kind == SIM_SLOT_CUDA && p->contexts[gpu] ? sim_slot_pid(i) : 0;
		if (!pid)
			continue;
		out[n++] = (struct process){ (unsigned int)pid, sim_proc_used(i, gpu), i,
			sim_is_mig(gpu) ? g->gpu_instance : UINT32_MAX, sim_is_mig(gpu) ? g->compute_instance : UINT32_MAX };
	}
	return n;
}

/* The processes that have a context on the card, or on a part of it, by their pids in the caller's namespace; those
 * that cannot be seen from there are not listed (driver 580). */
static unsigned int processes(uint32_t gpu, struct process *out)
{
	sim_machine_lock();
	sim_sweep(true);
	unsigned int n = add_processes(gpu, out, 0);
	for (uint32_t i = sim_machine->ncards; i < sim_machine->ngpus; i++)
		if (sim_machine->gpus[i].parent == gpu)
			n = add_processes(i, out, n);
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
		infos[i] = (nvmlProcessInfo_v2_t){ found[i].pid, found[i].bytes, found[i].gpu_instance, found[i].compute_instance };
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

struct sample {
	unsigned int pid, busy;
};

static unsigned long long stamp_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (unsigned long long)ts.tv_sec * 1000000ull + (unsigned long long)ts.tv_nsec / 1000;
}

/* A slow average, and nothing at all in the first second of a process' work, as on real cards. */
static unsigned int samples_of(uint32_t gpu, struct sample *out)
{
	struct process found[SIM_MAX_PROCS];
	unsigned int running = processes(gpu, found), n = 0;

	sim_machine_lock();
	uint64_t now = sim_now();
	bring_up_to_date(gpu, now);
	for (unsigned int i = 0; i < running; i++) {
		uint64_t first = sim_machine->procs[found[i].slot].first_busy_ns[gpu];
		if (first && now - first >= 1000000000ull)
			out[n++] = (struct sample){ found[i].pid, sim_proc_utilisation(found[i].slot, gpu, now) };
	}
	sim_machine_unlock();
	return n;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(
	nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count, unsigned long long since)
{
	NVML_DEVICE(nvmlDeviceGetProcessUtilization);
	struct sample found[SIM_MAX_PROCS];

	if (sim_in_mig(gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int n = samples_of(gpu, found), room = *count;
	unsigned long long stamp = stamp_now();
	if (!n || stamp <= since) {
		*count = 0;
		return NVML_ERROR_NOT_FOUND;
	}
	*count = n;
	if (!samples || room < n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++)
		samples[i] = (nvmlProcessUtilizationSample_t){ found[i].pid, stamp, found[i].busy, found[i].busy / 2, 0, 0 };
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
	NVML_DEVICE(nvmlDeviceGetProcessesUtilizationInfo);
	struct sample found[SIM_MAX_PROCS];

	if (sim_in_mig(gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != (sizeof(*info) | 1u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	unsigned int n = samples_of(gpu, found), room = info->processSamplesCount;
	unsigned long long stamp = stamp_now();
	if (!n || stamp <= info->lastSeenTimeStamp)
		return NVML_ERROR_NOT_FOUND;
	info->processSamplesCount = n;
	if (!info->procUtilArray || room < n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++)
		info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
			.timeStamp = stamp, .pid = found[i].pid, .smUtil = found[i].busy, .memUtil = found[i].busy / 2,
		};
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
	NVML_DEVICE(nvmlDeviceGetRunningProcessDetailList);
	struct process found[SIM_MAX_PROCS];

	if (!list || list->mode > NVML_PROCESS_MODE_MPS)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (list->version != (sizeof(*list) | 1u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	unsigned int n = list->mode == NVML_PROCESS_MODE_COMPUTE ? processes(gpu, found) : 0, room = list->numProcArrayEntries;
	list->numProcArrayEntries = n;
	if (room < n || (n && !list->procArray))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++)
		list->procArray[i] = (nvmlProcessDetail_v1_t){ found[i].pid, found[i].bytes, found[i].gpu_instance,
			found[i].compute_instance, 0 };
	return NVML_SUCCESS;
}

typedef struct { unsigned int gpu, memory; } utilisation;

SIM_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, utilisation *out)
{
	NVML_DEVICE(nvmlDeviceGetUtilizationRates);
	if (sim_in_mig(gpu))
		return NVML_ERROR_NOT_SUPPORTED;
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
