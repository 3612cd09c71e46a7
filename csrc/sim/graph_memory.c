/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of allocation nodes.  The address is fixed when the node is made; the card's memory is taken
 * when the graph is launched, into a pool of the device that keeps what was freed for the next launch
 * until it is trimmed.  Until then it counts as used, also what a graph has freed itself (as on an H200, driver
 * 580.159.04).
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "graph.h"

static struct {
	uint64_t used, used_high, reserved, reserved_high;
} memory[SIM_MAX_GPUS]; /* by device */

/* Addresses stay planned: graphs may be instantiated again. */
static struct plan {
	struct plan *next;
	uint64_t addr, bytes;
} *plans;

CUresult sim_graph_memory_plan(CUdevice device, uint64_t bytes, uint64_t *addr)
{
	if (bytes > sim_model_of(sim_device_gpu[device])->total_bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct plan *plan = malloc(sizeof(*plan));
	*addr = plan ? sim_backing(sim_page_up(bytes), false) : 0;
	if (!*addr) {
		free(plan);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*plan = (struct plan){ plans, *addr, bytes };
	plans = plan;
	return CUDA_SUCCESS;
}

bool sim_graph_memory_planned(uint64_t addr, uint64_t bytes)
{
	for (const struct plan *plan = plans; plan; plan = plan->next)
		if (addr >= plan->addr && bytes <= plan->bytes && addr - plan->addr <= plan->bytes - bytes)
			return true;
	return false;
}

CUresult sim_graph_memory_alloc(CUcontext ctx, CUdevice device, uint64_t addr, uint64_t bytes)
{
	uint32_t gpu = sim_device_gpu[device];
	uint64_t size = sim_rounded(gpu, bytes), used = memory[device].used + size;

	if (sim_block_at(addr))
		return CUDA_ERROR_INVALID_VALUE; /* not freed since the last launch */
	if (used > memory[device].reserved) {
		SIM_TRY(sim_charge(gpu, used - memory[device].reserved));
		memory[device].reserved = used;
	}
	struct sim_block block = {
		.addr = addr, .bytes = bytes, .kind = SIM_GRAPHMEM, .ctx = ctx, .device = device, .fd = -1,
	};
	if (!sim_block_add(&block))
		return CUDA_ERROR_OUT_OF_MEMORY;
	memory[device].used = used;
	if (used > memory[device].used_high)
		memory[device].used_high = used;
	if (memory[device].reserved > memory[device].reserved_high)
		memory[device].reserved_high = memory[device].reserved;
	return CUDA_SUCCESS;
}

CUresult sim_graph_memory_free(struct sim_block *block)
{
	memory[block->device].used -= sim_rounded(sim_device_gpu[block->device], block->bytes);
	/* The address stays the graph's; the pages go. */
	madvise((void *)(uintptr_t)block->addr, sim_page_up(block->bytes), MADV_DONTNEED);
	sim_block_drop(block);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	SIM_ENTER(cuDeviceGraphMemTrim);
	if (!sim_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_uncharge(sim_device_gpu[device], memory[device].reserved - memory[device].used);
	memory[device].reserved = memory[device].used;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
	SIM_ENTER(cuDeviceGetGraphMemAttribute);
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	switch (attribute) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *(cuuint64_t *)value = memory[device].reserved; return CUDA_SUCCESS;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *(cuuint64_t *)value = memory[device].used_high; return CUDA_SUCCESS;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *(cuuint64_t *)value = memory[device].reserved; return CUDA_SUCCESS;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *(cuuint64_t *)value = memory[device].reserved_high; return CUDA_SUCCESS;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
}

SIM_EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
	SIM_ENTER(cuDeviceSetGraphMemAttribute);
	if (!value || *(cuuint64_t *)value)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		memory[device].used_high = memory[device].used;
	else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		memory[device].reserved_high = memory[device].reserved;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}
