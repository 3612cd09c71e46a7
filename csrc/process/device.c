/* SPDX-License-Identifier: Apache-2.0
 *
 * This process's devices.  CUDA numbers them by what CUDA_VISIBLE_DEVICES leaves, in its own order; NVML numbers all
 * of them by PCI address.  So numbers identify nothing here: the UUID joins a CUDA ordinal, an NVML handle, the quota's
 * rules and the tenant's entry.
 */
#include <string.h>

#include "shim.h"

/* NVML's number of the card, or -1.  Only called if a rule names a number, because starting NVML takes milliseconds. */
static int nvml_index(const char *uuid)
{
	nvmlDevice_t handle;
	unsigned int index;
	if (!gl_nvml_load() || REAL(nvmlInit_v2)() != NVML_SUCCESS)
		return -1;
	if (REAL(nvmlDeviceGetHandleByUUID)(uuid, &handle) != NVML_SUCCESS ||
	    REAL(nvmlDeviceGetIndex)(handle, &index) != NVML_SUCCESS)
		return -1;
	return (int)index;
}

static bool names_an_index(const struct gl_quota *quota)
{
	for (uint32_t i = 0; i < quota->memory_rules; i++)
		if (quota->memory[i].select == GL_SELECT_INDEX)
			return true;
	for (uint32_t i = 0; i < quota->compute_rules; i++)
		if (quota->compute[i].select == GL_SELECT_INDEX)
			return true;
	return false;
}

struct gl_device *gl_device_add(const uint8_t uuid[16], int index, uint64_t card_bytes, uint64_t *own_limit,
				uint32_t *own_percent, uint32_t *entry)
{
	char text[41];
	gl_uuid_text(uuid, text);
	uint64_t limit = card_bytes;
	if (!gl_quota_memory_for(&gl_self.quota, index, text, card_bytes, &limit))
		limit = card_bytes; /* no memory quota at all */
	*own_limit = limit < card_bytes ? limit : card_bytes;
	*own_percent = gl_quota_compute_for(&gl_self.quota, index, text);
	uint32_t hint = 0, percent = *own_percent, weight = gl_self.quota.weight ? gl_self.quota.weight : GL_DEFAULT_WEIGHT;
	const struct gl_policy_device *policy = gl_policy_for(uuid, &hint);
	if (policy) { /* the entry shows the tenant's quota, not this process's */
		limit = gl_load_relaxed(&policy->memory_limit_bytes);
		percent = gl_load_relaxed(&policy->compute_limit_percent);
		weight = gl_load_relaxed(&policy->weight);
	}
	return gl_segment_device(uuid, card_bytes, limit < card_bytes ? limit : card_bytes, percent, weight, entry);
}

/* If this process's environment set the tenant's quota, it is no longer a ceiling: a later change may also raise the quota.
 * An environment that asks for less than the tenant has still keeps this process below it. */
static void forget_proposal(struct gl_gpu *gpu)
{
	const struct gl_policy_device *policy = gl_policy_of(gpu);
	if (policy && !gl_self.daemon.proposed)
		return;
	if (gpu->own_limit_bytes >=
	    gl_load_relaxed(policy ? &policy->memory_limit_bytes : &gpu->device->memory_limit_bytes))
		gpu->own_limit_bytes = gpu->total_bytes;
	if (gpu->own_compute_percent >= gl_compute_percent(gpu))
		gpu->own_compute_percent = 100;
}

/* For display only.  A MIG device's name ends in its profile, "… MIG 1g.10gb".  If it does not, the newer call for the
 * UUID returns the MIG device's own and the older one the card's. */
static bool is_mig(CUdevice device, const CUuuid *uuid)
{
	CUuuid cards;
	char name[128] = "";
	if (gl_has(GL_ID_cuDeviceGetName) && REAL(cuDeviceGetName)(name, sizeof name, device) == CUDA_SUCCESS &&
	    strstr(name, " MIG "))
		return true;
	return gl_has(GL_ID_cuDeviceGetUuid_v2) && gl_has(GL_ID_cuDeviceGetUuid) &&
	       REAL(cuDeviceGetUuid)(&cards, device) == CUDA_SUCCESS && memcmp(&cards, uuid, sizeof cards) != 0;
}

static bool set_up(struct gl_gpu *gpu, int ordinal)
{
	CUuuid uuid;
	size_t total;
	char text[41];
	if (REAL(cuDeviceGet)(&gpu->ordinal, ordinal) != CUDA_SUCCESS)
		return false;
	CUresult r = gl_has(GL_ID_cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(&uuid, gpu->ordinal)
						      : REAL(cuDeviceGetUuid)(&uuid, gpu->ordinal);
	if (r != CUDA_SUCCESS || REAL(cuDeviceTotalMem_v2)(&total, gpu->ordinal) != CUDA_SUCCESS)
		return false;
	memcpy(gpu->uuid, uuid.bytes, sizeof gpu->uuid);
	gpu->total_bytes = total;
	gl_uuid_text(gpu->uuid, text);
	int index = names_an_index(&gl_self.quota) ? nvml_index(text) : -1;
	gpu->device = gl_device_add(gpu->uuid, index, total, &gpu->own_limit_bytes, &gpu->own_compute_percent, &gpu->index);
	if (!gpu->device)
		return false;
	gl_store_relaxed(&gpu->device->mig, (uint32_t)is_mig(gpu->ordinal, &uuid));
	gpu->account = &gl_self.own->account[gpu->index];
	forget_proposal(gpu);
	gl_log(GL_INFO, "device %d (%s): memory %llu of %llu bytes, compute %u%%", ordinal, text,
	       (unsigned long long)gl_limit_bytes(gpu), (unsigned long long)total, gl_compute_percent(gpu));
	return true;
}

static void set_up_all(void)
{
	int count = 0;
	gl_lock(&gl_self.setup_lock);
	if (!gl_self.gpus_ready && REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS) {
		int done = 0;
		while (done < count && done < GL_MAX_DEVICES && set_up(&gl_self.gpu[done], done))
			done++;
		if (done < count) {
			/* Refuses a card whose limit cannot be enforced. */
			int error = gl_self.entry_error;
			gl_log(GL_ERROR, "device %d cannot be put under quota%s%s; every CUDA call of this process is refused", done,
			       error ? ": " : "", error == -EUSERS ? "the tenant uses too many" : error ? gl_segment_reason(error) : "");
			gl_store_release(&gl_self.state, (uint32_t)GL_FAILED);
		}
		gl_self.gpu_count = done;
		gl_store_release(&gl_self.gpus_ready, 1u);
	}
	gl_unlock(&gl_self.setup_lock);
}

struct gl_gpu *gl_gpu_of(CUdevice dev)
{
	if (GL_UNLIKELY(!gl_load_acquire(&gl_self.gpus_ready)))
		set_up_all();
	if (!gl_load_acquire(&gl_self.gpus_ready))
		return NULL;
	return dev >= 0 && dev < gl_self.gpu_count ? &gl_self.gpu[dev] : NULL;
}

struct gl_gpu *gl_gpu_current(void)
{
	CUdevice dev;
	return REAL(cuCtxGetDevice)(&dev) == CUDA_SUCCESS ? gl_gpu_of(dev) : NULL;
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool gl_uuid_bytes(const char *text, uint8_t out[16])
{
	int digits = 0;
	for (const char *p = strchr(text, '-'); p && *p; p++) {
		if (hex(*p) < 0 || digits == 32)
			continue;
		out[digits / 2] = (uint8_t)(digits % 2 ? out[digits / 2] | hex(*p) : hex(*p) << 4);
		digits++;
	}
	return digits == 32;
}

uint64_t gl_used_bytes(const struct gl_gpu *gpu)
{
	gl_segment_reap();
	return gl_charged_bytes(gpu->index);
}
