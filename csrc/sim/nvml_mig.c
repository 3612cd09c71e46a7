/* SPDX-License-Identifier: Apache-2.0
 *
 * MIG devices, and GPM, which alone can tell how busy they are (from Hopper on).
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "nvml.h"

enum { MAX_MIG_DEVICES = 7, NO_MEMORY = 20, AMPERE = 8, HOPPER = 9 };

static bool knows_mig(const struct sim_model *model)
{
	return model->cc_major >= HOPPER || (model->cc_major == AMPERE && model->cc_minor == 0);
}

/* For tests: the card in NVML's order is taken apart like this now ("1g.10gb,-,2g.20gb", "on" without devices, "off"). */
SIM_EXPORT nvmlReturn_t gpulimit_sim_mig(unsigned int index, const char *layout)
{
	NVML_ENTER(gpulimit_sim_mig);
	if (index >= sim_machine->ncards || !layout)
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_machine_lock();
	bool done = sim_mig_layout(sim_machine, sim_nvml_gpu_at(index), layout);
	sim_machine_unlock();
	return done ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending)
{
	NVML_DEVICE(nvmlDeviceGetMigMode);
	if (!now || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sim_is_mig(gpu) || !knows_mig(model))
		return NVML_ERROR_NOT_SUPPORTED;
	*now = *pending = sim_machine->gpus[gpu].mig_enabled;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	NVML_DEVICE(nvmlDeviceGetMaxMigDeviceCount);
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = knows_mig(model) && !sim_is_mig(gpu) ? MAX_MIG_DEVICES : 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
	NVML_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex);
	if (!out || index >= MAX_MIG_DEVICES)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sim_is_mig(gpu) || !knows_mig(model))
		return NVML_ERROR_NOT_SUPPORTED;
	for (uint32_t i = sim_machine->ncards; i < sim_machine->ngpus; i++) {
		const struct sim_gpu *g = &sim_machine->gpus[i];
		if (g->parent != gpu || g->gone || g->mig_index != index)
			continue;
		*out = sim_nvml_handle(i);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
	NVML_DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
	if (!out || !sim_is_mig(gpu))
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = sim_nvml_handle(sim_machine->gpus[gpu].parent);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is)
{
	NVML_DEVICE(nvmlDeviceIsMigDeviceHandle);
	if (!is)
		return NVML_ERROR_INVALID_ARGUMENT;
	*is = sim_is_mig(gpu);
	return NVML_SUCCESS;
}

#define INSTANCE_ID(name, field)                                         \
	SIM_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *id) \
	{                                                                \
		NVML_DEVICE(name);                                       \
		if (!id)                                                 \
			return NVML_ERROR_INVALID_ARGUMENT;              \
		if (!sim_is_mig(gpu))                                    \
			return NVML_ERROR_NOT_SUPPORTED;                 \
		*id = sim_machine->gpus[gpu].field;                      \
		return NVML_SUCCESS;                                     \
	}
INSTANCE_ID(nvmlDeviceGetGpuInstanceId, gpu_instance)
INSTANCE_ID(nvmlDeviceGetComputeInstanceId, compute_instance)

struct attributes {
	unsigned int multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
	unsigned long long memory_mb;
};

SIM_EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, struct attributes *out)
{
	NVML_DEVICE(nvmlDeviceGetAttributes_v2);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!sim_is_mig(gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned int slices = (unsigned int)strtoul(sim_machine->gpus[gpu].profile, NULL, 10);
	*out = (struct attributes){ .multiprocessors = (unsigned int)model->sm_count, .copy = slices, .gpu_slices = slices,
		.compute_slices = slices, .memory_mb = model->total_bytes >> 20 };
	return NVML_SUCCESS;
}

/* ---- GPM ---- */

enum { GPM_VERSION = 1, GRAPHICS_UTIL = 1, SM_UTIL = 2, DRAM_BW_UTIL = 10, MAX_METRICS = 512 };

struct gpm_sample {
	uint32_t gpu;
	uint64_t at_ns, busy_ns;
};
struct gpm_support {
	unsigned int version, supported;
};
struct gpm_metric {
	unsigned int id;
	nvmlReturn_t result;
	double value;
	const char *short_name, *long_name, *unit;
};
struct gpm_get {
	unsigned int version, count;
	struct gpm_sample *first, *second;
	struct gpm_metric metrics[];
};

SIM_EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, struct gpm_support *support)
{
	NVML_DEVICE(nvmlGpmQueryDeviceSupport);
	if (!support)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (support->version != GPM_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->supported = model->cc_major >= HOPPER;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
	NVML_ENTER(nvmlGpmSampleAlloc);
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	*sample = calloc(1, sizeof(**sample));
	return *sample ? NVML_SUCCESS : (nvmlReturn_t)NO_MEMORY;
}

SIM_EXPORT nvmlReturn_t nvmlGpmSampleFree(struct gpm_sample *sample)
{
	NVML_ENTER(nvmlGpmSampleFree);
	free(sample);
	return NVML_SUCCESS;
}

static nvmlReturn_t take_sample(uint32_t gpu, struct gpm_sample *sample)
{
	sim_machine_lock();
	sim_sweep(true);
	uint64_t now = sim_now();
	sim_gpu_advance(gpu, now);
	*sample = (struct gpm_sample){ gpu, now, sim_machine->gpus[gpu].busy_ns };
	sim_machine_unlock();
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, struct gpm_sample *sample)
{
	NVML_DEVICE(nvmlGpmSampleGet);
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	return model->cc_major >= HOPPER && !sim_in_mig(gpu) ? take_sample(gpu, sample) : NVML_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, struct gpm_sample *sample)
{
	NVML_DEVICE(nvmlGpmMigSampleGet);
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (model->cc_major < HOPPER || sim_is_mig(gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	for (uint32_t i = sim_machine->ncards; i < sim_machine->ngpus; i++) {
		const struct sim_gpu *g = &sim_machine->gpus[i];
		if (g->parent == gpu && !g->gone && g->gpu_instance == gpu_instance)
			return take_sample(i, sample);
	}
	return NVML_ERROR_INVALID_ARGUMENT;
}

SIM_EXPORT nvmlReturn_t nvmlGpmMetricsGet(struct gpm_get *get)
{
	NVML_ENTER(nvmlGpmMetricsGet);
	if (!get || !get->first || !get->second || get->count > MAX_METRICS)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (get->version != GPM_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	const struct gpm_sample *a = get->first, *b = get->second;
	if (a->gpu != b->gpu || b->at_ns <= a->at_ns)
		return NVML_ERROR_INVALID_ARGUMENT;
	double busy = 100.0 * (double)(b->busy_ns - a->busy_ns) / (double)(b->at_ns - a->at_ns);
	for (unsigned int i = 0; i < get->count; i++) {
		struct gpm_metric *metric = &get->metrics[i];
		bool known = metric->id == GRAPHICS_UTIL || metric->id == SM_UTIL || metric->id == DRAM_BW_UTIL;
		metric->result = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
		metric->value = metric->id == DRAM_BW_UTIL ? busy / 2 : busy;
	}
	return NVML_SUCCESS;
}
