/* SPDX-License-Identifier: Apache-2.0
 *
 * A card of a vGPU host, as NVML tells of it.  Everything comes from the profile:
 *
 *   vgpu             "sriov" or "non-sriov"; without it every call here answers that it is not supported
 *   vgpus            how many there are at first, of type vgpu_type with vgpu_memory each
 *   vgpu_policy      1 best effort, 2 equal share, 3 fixed share; vgpu_timeslice
 *   vgpu_arr         adaptive round robin: 0 not supported, 1 off, 2 on
 *   vgpu_sm          how busy each is, in percent
 *   vgpu_overruns    of the ten slices in each reading of the scheduler's log, so many ran too long
 *   vgpu_accounting  1: accounting is on in the guests
 *   vgpu_claim       the number of vGPUs that the driver claims to have, if not 0: not to be believed
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml.h"

enum { TYPE_ID = 712, HOST_VGPU = 3, BEST_EFFORT = 1, ARR_ON = 2, LOG_ENTRIES = 200, SLICES_A_READING = 10, UNSIGNED_INT = 1 };
#define SAMPLE_US 166667ull

static bool is_host(uint32_t gpu)
{
	return sim_machine->gpus[gpu].model.vgpu[0] != 0;
}

/* Enter about a card that is a vGPU host. */
#define VGPU_HOST(fn)    \
	NVML_DEVICE(fn); \
	if (!is_host(gpu)) \
	return NVML_ERROR_NOT_SUPPORTED

/* Enter about a vGPU. */
#define VGPU(fn)                                      \
	NVML_ENTER(fn);                               \
	struct sim_vgpu *v = find(instance);          \
	if (!v)                                       \
		return NVML_ERROR_NOT_FOUND;          \
	const struct sim_model *model = &sim_machine->gpus[v->card].model; \
	(void)model

static struct sim_vgpu *find(unsigned int id)
{
	for (uint32_t i = 0; id && i < SIM_MAX_VGPUS; i++)
		if (sim_machine->vgpus[i].id == id)
			return &sim_machine->vgpus[i];
	return NULL;
}

static nvmlReturn_t text(char *out, unsigned int size, const char *value)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(value) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, value);
	return NVML_SUCCESS;
}

/* For tests: "add", "drop N", "sm N PERCENT", "processes N COUNT", "license N STATE", "vm N TEXT", "driver N TEXT" for
 * the N-th vGPU of the card in NVML's order. */
SIM_EXPORT nvmlReturn_t gpulimit_sim_vgpu(unsigned int index, const char *command)
{
	NVML_ENTER(gpulimit_sim_vgpu);
	char verb[16] = "", rest[48] = "";
	unsigned int n = 0;
	bool done = false;

	if (index >= sim_machine->ncards || !command || sscanf(command, "%15s %u %47[^\n]", verb, &n, rest) < 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	uint32_t card = sim_nvml_gpu_at(index);
	sim_machine_lock();
	if (!strcmp(verb, "add"))
		done = sim_vgpu_add(sim_machine, card);
	for (uint32_t i = 0; !done && i < SIM_MAX_VGPUS; i++) {
		struct sim_vgpu *v = &sim_machine->vgpus[i];
		if (!v->id || v->card != card || n--)
			continue;
		done = true;
		if (!strcmp(verb, "drop"))
			v->id = 0;
		else if (!strcmp(verb, "sm"))
			v->sm = (uint32_t)strtoul(rest, NULL, 10);
		else if (!strcmp(verb, "processes"))
			v->processes = (uint32_t)strtoul(rest, NULL, 10);
		else if (!strcmp(verb, "license"))
			v->license = (uint32_t)strtoul(rest, NULL, 10);
		else if (!strcmp(verb, "vm"))
			snprintf(v->vm_id, sizeof(v->vm_id), "%s", rest);
		else if (!strcmp(verb, "driver"))
			snprintf(v->driver, sizeof(v->driver), "%.31s", rest);
		break;
	}
	sim_machine_unlock();
	return done ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* ---- the card ---- */

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned int *mode)
{
	NVML_DEVICE(nvmlDeviceGetVirtualizationMode);
	if (!mode)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mode = is_host(gpu) ? HOST_VGPU : 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHostVgpuMode(nvmlDevice_t device, unsigned int *mode)
{
	VGPU_HOST(nvmlDeviceGetHostVgpuMode);
	if (!mode)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mode = !strcmp(model->vgpu, "sriov");
	return NVML_SUCCESS;
}

/* The size protocol: *count is the room on entry and the number on return. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetActiveVgpus(nvmlDevice_t device, unsigned int *count, unsigned int *ids)
{
	VGPU_HOST(nvmlDeviceGetActiveVgpus);
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int room = *count, n = 0;
	for (uint32_t i = 0; i < SIM_MAX_VGPUS; i++) {
		const struct sim_vgpu *v = &sim_machine->vgpus[i];
		if (!v->id || v->card != gpu)
			continue;
		if (n < room && ids)
			ids[n] = v->id;
		n++;
	}
	*count = model->vgpu_claim ? (unsigned int)model->vgpu_claim : n;
	return n && room < *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

struct parameters { /* with adaptive round robin: average factor, time slice; without: time slice */
	unsigned int words[2];
};

static struct parameters parameters_of(const struct sim_model *model)
{
	unsigned int slice = (unsigned int)model->vgpu_timeslice_ns;

	return model->vgpu_arr == ARR_ON ? (struct parameters){ { 33, slice } } : (struct parameters){ { slice, 0 } };
}

struct scheduler_state {
	unsigned int policy, arr;
	struct parameters parameters;
};

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVgpuSchedulerState(nvmlDevice_t device, struct scheduler_state *state)
{
	VGPU_HOST(nvmlDeviceGetVgpuSchedulerState);
	if (!state)
		return NVML_ERROR_INVALID_ARGUMENT;
	*state = (struct scheduler_state){ (unsigned int)model->vgpu_policy, (unsigned int)model->vgpu_arr, parameters_of(model) };
	return NVML_SUCCESS;
}

struct scheduler_capabilities {
	unsigned int policies[3], longest_slice, shortest_slice, arr, most_frequency, least_frequency, most_average, least_average;
};

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVgpuSchedulerCapabilities(nvmlDevice_t device, struct scheduler_capabilities *out)
{
	VGPU_HOST(nvmlDeviceGetVgpuSchedulerCapabilities);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = (struct scheduler_capabilities){ { 1, 2, 3 }, 30000000, 1000000, model->vgpu_arr != 0, 960, 63, 60, 1 };
	return NVML_SUCCESS;
}

struct log_entry {
	unsigned long long stamp_ns, run_total_ns, run_ns;
	unsigned int runlist;
	unsigned long long target_ns, preempted_ns;
};
struct scheduler_log {
	unsigned int engine, policy, arr;
	struct parameters parameters;
	unsigned int count;
	struct log_entry entries[LOG_ENTRIES];
};

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVgpuSchedulerLog(nvmlDevice_t device, struct scheduler_log *log)
{
	VGPU_HOST(nvmlDeviceGetVgpuSchedulerLog);
	if (!log)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(log, 0, sizeof(*log));
	log->engine = 1;
	log->policy = (unsigned int)model->vgpu_policy;
	log->arr = (unsigned int)model->vgpu_arr;
	log->parameters = parameters_of(model);
	log->count = SLICES_A_READING;
	uint64_t now = sim_now(), target = model->vgpu_policy == BEST_EFFORT ? 0 : model->vgpu_timeslice_ns;
	for (uint32_t i = 0; i < log->count; i++) {
		uint64_t run = target + (i < model->vgpu_overruns ? 1000 : 0);
		log->entries[i] = (struct log_entry){ now - (log->count - i) * 1000, now, run, 1, target, 0 };
	}
	return NVML_SUCCESS;
}

/* ---- samples ---- */

union value {
	double real;
	unsigned int whole;
	unsigned long long longest;
};
struct sample {
	unsigned int id;
	unsigned long long stamp_us;
	union value sm, memory, encoder, decoder;
};

static unsigned long long stamp_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return ((unsigned long long)ts.tv_sec * 1000000ull + (unsigned long long)ts.tv_nsec / 1000) / SAMPLE_US * SAMPLE_US;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVgpuUtilization(
	nvmlDevice_t device, unsigned long long since, int *type, unsigned int *count, struct sample *samples)
{
	VGPU_HOST(nvmlDeviceGetVgpuUtilization);
	unsigned long long stamp = stamp_now();
	unsigned int n = 0;

	if (!type || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*type = UNSIGNED_INT;
	if (stamp <= since)
		return NVML_ERROR_NOT_FOUND;
	for (uint32_t i = 0; i < SIM_MAX_VGPUS; i++) {
		const struct sim_vgpu *v = &sim_machine->vgpus[i];
		if (!v->id || v->card != gpu)
			continue;
		if (n < *count && samples)
			samples[n] = (struct sample){ v->id, stamp, { .whole = v->sm }, { .whole = v->memory }, { .whole = v->encoder },
				{ .whole = v->decoder } };
		n++;
	}
	unsigned int room = *count;
	*count = model->vgpu_claim ? (unsigned int)model->vgpu_claim : n;
	return n && (room < n || !samples) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* ---- instances ---- */

SIM_EXPORT nvmlReturn_t nvmlVgpuInstanceGetUUID(unsigned int instance, char *uuid, unsigned int size)
{
	VGPU(nvmlVgpuInstanceGetUUID);
	return text(uuid, size, v->uuid);
}

SIM_EXPORT nvmlReturn_t nvmlVgpuInstanceGetVmID(unsigned int instance, char *id, unsigned int size, int *type)
{
	VGPU(nvmlVgpuInstanceGetVmID);
	if (type)
		*type = strchr(v->vm_id, '-') != NULL; /* 0: the hypervisor's number, 1: a UUID */
	return text(id, size, v->vm_id);
}

SIM_EXPORT nvmlReturn_t nvmlVgpuInstanceGetVmDriverVersion(unsigned int instance, char *version, unsigned int size)
{
	VGPU(nvmlVgpuInstanceGetVmDriverVersion);
	return text(version, size, v->driver[0] ? v->driver : "Not Available");
}

SIM_EXPORT nvmlReturn_t nvmlVgpuInstanceGetFbUsage(unsigned int instance, unsigned long long *bytes)
{
	VGPU(nvmlVgpuInstanceGetFbUsage);
	if (!bytes)
		return NVML_ERROR_INVALID_ARGUMENT;
	*bytes = v->used_bytes;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlVgpuInstanceGetType(unsigned int instance, unsigned int *type)
{
	VGPU(nvmlVgpuInstanceGetType);
	if (!type)
		return NVML_ERROR_INVALID_ARGUMENT;
	*type = TYPE_ID + v->card;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlVgpuInstanceGetAccountingMode(unsigned int instance, int *mode)
{
	VGPU(nvmlVgpuInstanceGetAccountingMode);
	if (!mode)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mode = model->vgpu_accounting != 0;
	return NVML_SUCCESS;
}

/* Ended processes are listed too, and come first: the order means nothing. */
SIM_EXPORT nvmlReturn_t nvmlVgpuInstanceGetAccountingPids(unsigned int instance, unsigned int *count, unsigned int *pids)
{
	VGPU(nvmlVgpuInstanceGetAccountingPids);
	unsigned int n = model->vgpu_accounting ? v->processes + 1 : 0, room = count ? *count : 0;

	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!model->vgpu_accounting)
		return NVML_ERROR_NOT_SUPPORTED;
	*count = n;
	if (room < n || !pids)
		return n ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
	for (unsigned int i = 0; i < n; i++)
		pids[i] = 100 + i;
	return NVML_SUCCESS;
}

struct accounting {
	unsigned int gpu, memory;
	unsigned long long most_bytes, time_ms, start_us;
	unsigned int running, reserved[5];
};

SIM_EXPORT nvmlReturn_t nvmlVgpuInstanceGetAccountingStats(unsigned int instance, unsigned int pid, struct accounting *out)
{
	VGPU(nvmlVgpuInstanceGetAccountingStats);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (pid < 100 || pid > 100 + v->processes)
		return NVML_ERROR_NOT_FOUND;
	bool has_ended = pid == 100;
	*out = (struct accounting){ .gpu = has_ended ? 99 : v->sm / v->processes, .memory = has_ended ? 99 : UINT32_MAX,
		.running = !has_ended };
	return NVML_SUCCESS;
}

struct expiry {
	unsigned int year;
	unsigned short month, day, hour, minute, second;
	unsigned char status;
};
struct license {
	unsigned char is_licensed;
	struct expiry expiry;
	unsigned int state;
};

SIM_EXPORT nvmlReturn_t nvmlVgpuInstanceGetLicenseInfo_v2(unsigned int instance, struct license *license)
{
	VGPU(nvmlVgpuInstanceGetLicenseInfo_v2);
	if (!license)
		return NVML_ERROR_INVALID_ARGUMENT;
	*license = (struct license){ .is_licensed = v->license == 5, .expiry = { 2027, 1, 1, 0, 0, 0, 1 }, .state = v->license };
	return NVML_SUCCESS;
}

static nvmlReturn_t model_of_type(unsigned int type, const struct sim_model **model)
{
	if (type < TYPE_ID || type - TYPE_ID >= sim_machine->ncards)
		return NVML_ERROR_INVALID_ARGUMENT;
	*model = &sim_machine->gpus[type - TYPE_ID].model;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlVgpuTypeGetName(unsigned int type, char *name, unsigned int *size)
{
	NVML_ENTER(nvmlVgpuTypeGetName);
	const struct sim_model *model;

	if (!name || !size || model_of_type(type, &model))
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t result = text(name, *size, model->vgpu_type);
	*size = (unsigned int)strlen(model->vgpu_type) + 1;
	return result;
}

SIM_EXPORT nvmlReturn_t nvmlVgpuTypeGetFramebufferSize(unsigned int type, unsigned long long *bytes)
{
	NVML_ENTER(nvmlVgpuTypeGetFramebufferSize);
	const struct sim_model *model;

	if (!bytes || model_of_type(type, &model))
		return NVML_ERROR_INVALID_ARGUMENT;
	*bytes = model->vgpu_memory_bytes;
	return NVML_SUCCESS;
}
