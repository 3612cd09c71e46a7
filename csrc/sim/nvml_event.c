/* SPDX-License-Identifier: Apache-2.0
 *
 * Trouble with a card, told by a test, and NVML's event sets, which pass it on.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "nvml.h"

#define POLL_NS 5000000ull
enum { TIMEOUT = 10, NO_MEMORY = 20 }; /* NVML_ERROR_* */
enum { XID_FALLEN_OFF_THE_BUS = 79, XID_CRITICAL_EVENT = 8 };

typedef struct nvmlEventSet_st *nvmlEventSet_t;
struct nvmlEventSet_st {
	uint64_t types[SIM_MAX_GPUS];
	uint32_t told[SIM_MAX_GPUS]; /* errors of each card that this set has passed on */
};
struct event_data { /* the first version of the call knows only the first three */
	nvmlDevice_t device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

/* For tests: the card in NVML's order has this error now; 79 takes it off the bus, 0 puts it back. */
SIM_EXPORT nvmlReturn_t gpulimit_sim_xid(unsigned int index, unsigned int xid)
{
	NVML_ENTER(gpulimit_sim_xid);
	if (index >= sim_machine->ncards)
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_machine_lock();
	struct sim_gpu *g = &sim_machine->gpus[sim_nvml_gpu_at(index)];
	__atomic_store_n(&g->lost, xid == XID_FALLEN_OFF_THE_BUS, __ATOMIC_RELAXED);
	for (uint32_t i = sim_machine->ncards; i < sim_machine->ngpus; i++) /* its MIG devices with it */
		if (&sim_machine->gpus[sim_machine->gpus[i].parent] == g)
			__atomic_store_n(&sim_machine->gpus[i].lost, g->lost, __ATOMIC_RELAXED);
	if (xid) {
		g->xid = xid;
		g->xids++;
	}
	sim_machine_unlock();
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	NVML_ENTER(nvmlEventSetCreate);
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	return *set ? NVML_SUCCESS : (nvmlReturn_t)NO_MEMORY;
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
	set->types[gpu] |= types;
	set->told[gpu] = sim_machine->gpus[gpu].xids;
	return NVML_SUCCESS;
}

static bool next_event(nvmlEventSet_t set, struct event_data *data)
{
	bool found = false;

	sim_machine_lock();
	for (uint32_t i = 0; i < sim_machine->ncards && !found; i++) {
		const struct sim_gpu *g = &sim_machine->gpus[i];
		if (!(set->types[i] & XID_CRITICAL_EVENT) || set->told[i] == g->xids)
			continue;
		set->told[i] = g->xids;
		*data = (struct event_data){ sim_nvml_handle(i), XID_CRITICAL_EVENT, g->xid, UINT32_MAX, UINT32_MAX };
		found = true;
	}
	sim_machine_unlock();
	return found;
}

static nvmlReturn_t wait_set(nvmlEventSet_t set, struct event_data *data, unsigned int timeout_ms)
{
	uint64_t end = sim_now() + timeout_ms * 1000000ull;

	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	while (!next_event(set, data)) {
		uint64_t now = sim_now();
		if (now >= end)
			return (nvmlReturn_t)TIMEOUT;
		sim_sleep_until(now + POLL_NS < end ? now + POLL_NS : end);
	}
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, struct event_data *data, unsigned int timeout_ms)
{
	NVML_ENTER(nvmlEventSetWait);
	struct event_data full;

	if (!data)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t result = wait_set(set, &full, timeout_ms);
	if (result)
		return result;
	data->device = full.device;
	data->type = full.type;
	data->data = full.data;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct event_data *data, unsigned int timeout_ms)
{
	NVML_ENTER(nvmlEventSetWait_v2);
	return data ? wait_set(set, data, timeout_ms) : NVML_ERROR_INVALID_ARGUMENT;
}
