/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of libnvidia-ml.  Handles are in PCI order, which may differ from CUDA's order.
 */
#ifndef GL_SIM_NVML_H
#define GL_SIM_NVML_H

#include "../abi.h"
#include "machine.h"

struct nvmlDevice_st {
	uint32_t gpu;
};
bool sim_nvml_enter(struct sim_site *site, nvmlReturn_t *result); /* true: return *result */
bool sim_nvml_device(nvmlDevice_t device, uint32_t *gpu);
void sim_nvml_about(nvmlDevice_t device); /* sets the card of this call, by its NVML index, for faults of one card */
uint32_t sim_nvml_gpu_at(unsigned int index); /* by PCI order */
unsigned int sim_nvml_index(uint32_t gpu);
nvmlDevice_t sim_nvml_handle(uint32_t gpu);
static inline bool sim_is_mig(uint32_t gpu) { return sim_machine->gpus[gpu].parent != SIM_NO_GPU; }
/* True for a MIG device and for a card in MIG mode: NVML reports no activity for these. */
static inline bool sim_in_mig(uint32_t gpu) { return sim_is_mig(gpu) || sim_machine->gpus[gpu].mig_enabled; }

struct sim_nvml_call {
	struct sim_site *site;
};
static inline void sim_nvml_leave(struct sim_nvml_call *call)
{
	sim_fault_leave(call->site);
}

#define NVML_ENTER(fn)                                                                          \
	static struct sim_site site_ = { #fn, 0, NULL };                                        \
	struct sim_nvml_call call_ __attribute__((cleanup(sim_nvml_leave), unused)) = { &site_ };      \
	nvmlReturn_t enter_;                                                                    \
	if (sim_nvml_enter(&site_, &enter_))                                                    \
	return enter_
/* Enter, and resolve `device` to `gpu` and `model`. */
#define NVML_DEVICE(fn)                                                           \
	sim_nvml_about(device);                                                   \
	NVML_ENTER(fn);                                                           \
	uint32_t gpu;                                                             \
	if (!sim_nvml_device(device, &gpu))                                       \
		return NVML_ERROR_INVALID_ARGUMENT;                               \
	if (__atomic_load_n(&sim_machine->gpus[gpu].lost, __ATOMIC_RELAXED))      \
		return NVML_ERROR_GPU_IS_LOST;                                    \
	const struct sim_model *model = &sim_machine->gpus[gpu].model;            \
	(void)model

#endif
