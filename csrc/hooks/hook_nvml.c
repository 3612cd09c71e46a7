/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML's memory view: the quota is the card.  nvidia-smi, frameworks and Go clients call these hooks, most of them
 * without ever calling CUDA.  The real call goes first and its errors are returned unchanged; only its answer is
 * replaced.  A process whose quota cannot be enforced may still use NVML, since NVML allocates nothing.
 */
#include "hooks/hook_nvml.h"

#include <string.h>

struct gl_card gl_card_of(nvmlDevice_t handle)
{
	struct gl_card card = {.index = -1};
	unsigned int index;

	if (REAL(nvmlDeviceGetUUID)(handle, card.uuid, sizeof(card.uuid)) != NVML_SUCCESS)
		return card;
	card.known = true;
	card.mig = strncmp(card.uuid, "MIG-", 4) == 0;
	/* The number of a MIG instance counts inside its card, not among the cards. */
	if (!card.mig && REAL(nvmlDeviceGetIndex)(handle, &index) == NVML_SUCCESS)
		card.index = (int)index;
	uint8_t bytes[16];
	if (gl_uuid_bytes(card.uuid, bytes))
		card.device = gl_segment_find_device(bytes, &card.entry);
	return card;
}

/* The CUDA side's entry for the card, if this process has one. */
static struct gl_gpu *gpu_of_entry(const struct gl_card *card)
{
	if (!card->device || !gl_load_acquire(&gl_self.gpus_ready))
		return NULL;
	for (int i = 0; i < gl_self.gpu_count; i++)
		if (gl_self.gpu[i].device == card->device)
			return &gl_self.gpu[i];
	return NULL;
}

/* The size of a card as CUDA reports it: all but the memory that the driver keeps for itself (equal to the byte on an
 * H200).  Every view uses it, so that a share of the card is the same number everywhere. */
static uint64_t usable_bytes(nvmlDevice_t handle, uint64_t total)
{
	nvmlMemory_v2_t real = {.version = NVML_MEMORY_V2};

	if (REAL(nvmlDeviceGetMemoryInfo_v2)(handle, &real) != NVML_SUCCESS || real.reserved >= real.total)
		return total;
	return real.total - real.reserved;
}

/* A card that the tenant has not used has no entry, and a query adds none: entries are few, and nvidia-smi queries
 * every card and MIG instance of the node. */
static uint64_t limit_of(const struct gl_card *card, uint64_t card_bytes)
{
	const struct gl_device *device = card->device;
	const struct gl_policy_device *policy = NULL;
	uint64_t limit = card_bytes, own;
	uint32_t hint = 0;
	uint8_t uuid[16];

	if (gl_quota_memory_for(&gl_self.quota, card->index, card->uuid, card_bytes, &own) && own < limit)
		limit = own;
	if (gl_uuid_bytes(card->uuid, uuid))
		policy = gl_policy_for(uuid, &hint);
	const uint64_t *tenants = policy ? &policy->memory_limit_bytes : device ? &device->memory_limit_bytes : NULL;
	if (tenants && gl_load_acquire(tenants) < limit)
		limit = gl_load_acquire(tenants);
	return limit;
}

struct view {
	uint64_t total, used, free;
};

/* The tenant's part of a card with so many bytes in all and free. */
static struct view view_of(nvmlDevice_t handle, uint64_t card_bytes, uint64_t card_free)
{
	struct gl_card card = gl_card_of(handle);
	struct view view;

	if (card_free > card_bytes)
		card_free = card_bytes;
	view = (struct view){card_bytes, card_bytes - card_free, card_free};
	if (!card.known) {
		gl_log(GL_WARN, "NVML does not name a card; its memory is shown as it is");
		return view;
	}
	struct gl_gpu *gpu = gpu_of_entry(&card);
	if (gpu) {
		gl_pools_refresh(gpu);
		gl_overhead_refresh(gpu);
	}
	view.total = gpu ? gl_limit_bytes(gpu) : limit_of(&card, card_bytes);
	if (view.total > card_bytes)
		view.total = card_bytes;
	if (card.device) {
		gl_segment_reap();
		view.used = gl_charged_bytes(card.entry);
	} else {
		view.used = 0;
	}
	if (view.used > view.total)
		view.used = view.total;
	view.free = view.total - view.used;
	if (view.free > card_free)
		view.free = card_free;
	return view;
}

/* If other tenants leave less memory free than the quota allows, v1 counts the difference as used, because its `used`
 * is by definition all that is not free, and v2 as reserved.  Otherwise `used` is the tenant's use, in both. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlMemory_t real;

	if (gl_begin_nvml() != GL_ATTACHED || !memory)
		return REAL(nvmlDeviceGetMemoryInfo)(device, memory);
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, &real);
	if (result != NVML_SUCCESS)
		return result;
	struct view view = view_of(device, usable_bytes(device, real.total), real.free);
	memory->total = view.total;
	memory->free = view.free;
	memory->used = view.total - view.free;
	return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	/* A caller's structure may be smaller or larger; only its version may be read before the real call agrees. */
	union {
		nvmlMemory_v2_t v2;
		char room[1024];
	} real = {.v2 = {0}};

	if (gl_begin_nvml() != GL_ATTACHED || !memory)
		return REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
	real.v2.version = memory->version;
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, &real.v2);
	if (result != NVML_SUCCESS)
		return result;
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	struct view view = view_of(device, real.v2.total - real.v2.reserved, real.v2.free);
	memory->total = view.total;
	memory->free = view.free;
	memory->used = view.used;
	memory->reserved = view.total - view.used - view.free;
	return result;
}
