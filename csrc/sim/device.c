/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices: what a program may ask about a card.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

SIM_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	SIM_ENTER(cuDeviceGet);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetCount(int *count)
{
	SIM_ENTER(cuDeviceGetCount);
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = sim_device_count;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	SIM_ENTER(cuDeviceGetName);
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)len, "%s", sim_model_of(sim_device_gpu[dev])->name);
	return CUDA_SUCCESS;
}

static void uuid_bytes(const char *text, CUuuid *uuid)
{
	size_t n = 0;

	for (const char *c = text + 4; *c && n < sizeof(uuid->bytes);) {
		char pair[3] = { c[0], c[1], 0 };
		if (*c == '-') {
			c++;
			continue;
		}
		uuid->bytes[n++] = (char)strtoul(pair, NULL, 16);
		c += 2;
	}
}

static CUresult get_uuid(CUuuid *uuid, CUdevice dev, bool of_card)
{
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	uint32_t gpu = sim_device_gpu[dev], card = sim_machine->gpus[gpu].parent;
	uuid_bytes(sim_model_of(of_card && card != SIM_NO_GPU ? card : gpu)->uuid, uuid);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	SIM_ENTER(cuDeviceGetUuid);
	return get_uuid(uuid, dev, true);
}

SIM_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	SIM_ENTER(cuDeviceGetUuid_v2);
	return get_uuid(uuid, dev, false);
}

SIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	SIM_ENTER(cuDeviceTotalMem_v2);
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	const struct sim_model *m = sim_model_of(sim_device_gpu[dev]);
	*bytes = m->total_bytes - m->reserved_bytes;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	SIM_ENTER(cuDeviceTotalMem);
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	const struct sim_model *m = sim_model_of(sim_device_gpu[dev]);
	uint64_t total = m->total_bytes - m->reserved_bytes;
	*bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned int)total;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	SIM_ENTER(cuDeviceComputeCapability);
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*major = (int)sim_model_of(sim_device_gpu[dev])->cc_major;
	*minor = (int)sim_model_of(sim_device_gpu[dev])->cc_minor;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetPCIBusId(char *text, int len, CUdevice dev)
{
	SIM_ENTER(cuDeviceGetPCIBusId);
	if (!text || len < 13)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(text, (size_t)len, "0000:%02X:00.0", (unsigned)sim_model_of(sim_device_gpu[dev])->pci_bus);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *text)
{
	SIM_ENTER(cuDeviceGetByPCIBusId);
	unsigned domain, bus, device;

	if (!dev || !text)
		return CUDA_ERROR_INVALID_VALUE;
	if (sscanf(text, "%x:%x:%x", &domain, &bus, &device) != 3) {
		domain = 0;
		if (sscanf(text, "%x:%x", &bus, &device) != 2)
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (int i = 0; i < sim_device_count; i++) {
		if (!domain && sim_model_of(sim_device_gpu[i])->pci_bus == bus) {
			*dev = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

/* What a card of the current kind answers; the few that differ by model are below. */
static const struct { int attribute, value; } common[] = {
	{ 1, 1024 }, { 2, 1024 }, { 3, 1024 }, { 4, 64 }, { 5, 2147483647 }, { 6, 65535 }, { 7, 65535 }, { 8, 49152 },
	{ 9, 65536 }, { 10, 32 }, { 11, 2147483647 }, { 12, 65536 }, { 13, 1980000 }, { 14, 512 }, { 15, 1 },
	{ 19, 1 }, { 21, 131072 }, { 22, 131072 }, { 23, 65536 }, { 24, 16384 }, { 25, 16384 }, { 26, 16384 },
	{ 30, 512 }, { 31, 1 }, { 32, 1 }, { 36, 2619000 }, { 37, 5120 }, { 38, 52428800 }, { 39, 2048 }, { 40, 3 },
	{ 41, 1 }, { 51, 32 }, { 78, 1 }, { 79, 1 }, { 80, 1 }, { 81, 233472 }, { 82, 65536 }, { 83, 1 }, { 87, 2 },
	{ 89, 1 }, { 90, 1 }, { 91, 1 }, { 95, 1 }, { 97, 232448 }, { 99, 1 }, { 102, 1 }, { 103, 1 }, { 106, 32 },
	{ 108, 32505856 }, { 109, 134213632 }, { 111, 1024 }, { 115, 1 }, { 119, 1 }, { 120, 1 }, { 130, 0 }, { 131, -1 }, { 134, -1 },
};

SIM_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
	SIM_ENTER(cuDeviceGetAttribute);
	if (!value || attribute <= 0 || attribute > 200)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	const struct sim_model *m = sim_model_of(sim_device_gpu[dev]);
	switch (attribute) {
	case 16: *value = (int)m->sm_count; return CUDA_SUCCESS;
	case 33: *value = (int)m->pci_bus; return CUDA_SUCCESS;
	case 75: *value = (int)m->cc_major; return CUDA_SUCCESS;
	case 76: *value = (int)m->cc_minor; return CUDA_SUCCESS;
	default: break;
	}
	*value = 0;
	for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++)
		if (common[i].attribute == attribute)
			*value = common[i].value;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	SIM_ENTER(cuDeviceCanAccessPeer);
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(dev) || !sim_device_ok(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = dev != peer;
	return CUDA_SUCCESS;
}
