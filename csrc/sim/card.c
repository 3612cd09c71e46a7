/* SPDX-License-Identifier: Apache-2.0
 *
 * The card's memory as a sum: taking from it and giving back, whole granules only, and blocks that more
 * than one process holds.  What a process has is in its slot, so it vanishes with the slot.
 */
#include "sim.h"

CUresult sim_charge(uint32_t gpu, uint64_t bytes)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	struct sim_model *m = sim_model_of(gpu);

	if (!bytes)
		return CUDA_SUCCESS;
	sim_machine_lock();
	sim_sweep(true);
	uint64_t room = m->total_bytes - m->reserved_bytes, used = sim_gpu_used(gpu);
	if (used <= room && bytes <= room - used) {
		sim_machine->procs[sim_slot].bytes[gpu] += bytes;
		result = CUDA_SUCCESS;
	}
	sim_machine_unlock();
	return result;
}

void sim_uncharge(uint32_t gpu, uint64_t bytes)
{
	if (!bytes)
		return;
	sim_machine_lock();
	sim_machine->procs[sim_slot].bytes[gpu] -= bytes;
	sim_machine_unlock();
}

uint64_t sim_rounded(uint32_t gpu, uint64_t bytes)
{
	uint64_t granule = sim_model_of(gpu)->granule_bytes;

	return (bytes + granule - 1) / granule * granule;
}

/* Small pieces share granules: measured, 1 MiB and below.  A card without granules has none. */
static bool small(CUcontext ctx, uint64_t bytes)
{
	return bytes <= sim_model_of(ctx->gpu)->granule_bytes / 2;
}

static uint64_t small_size(uint64_t bytes)
{
	return (bytes + 511) / 512 * 512;
}

CUresult sim_take(CUcontext ctx, uint64_t bytes)
{
	if (!small(ctx, bytes))
		return sim_charge(ctx->gpu, sim_rounded(ctx->gpu, bytes));
	uint64_t after = ctx->small_bytes + small_size(bytes);
	SIM_TRY(sim_charge(ctx->gpu, sim_rounded(ctx->gpu, after) - sim_rounded(ctx->gpu, ctx->small_bytes)));
	ctx->small_bytes = after;
	return CUDA_SUCCESS;
}

void sim_give(CUcontext ctx, uint64_t bytes)
{
	if (!small(ctx, bytes)) {
		sim_uncharge(ctx->gpu, sim_rounded(ctx->gpu, bytes));
		return;
	}
	uint64_t after = ctx->small_bytes - small_size(bytes);
	sim_uncharge(ctx->gpu, sim_rounded(ctx->gpu, ctx->small_bytes) - sim_rounded(ctx->gpu, after));
	ctx->small_bytes = after;
}

/* How often this process holds each shared block; the machine knows only whether it does. */
static struct { uint64_t id; unsigned int holds; } held[SIM_MAX_SHARED];

static unsigned int *holds_of(uint64_t id)
{
	int place = -1;

	for (int i = 0; i < SIM_MAX_SHARED; i++) {
		if (held[i].holds && held[i].id == id)
			return &held[i].holds;
		if (!held[i].holds)
			place = i;
	}
	if (place < 0)
		return NULL;
	held[place].id = id;
	return &held[place].holds;
}

uint64_t sim_share_new(uint32_t gpu, uint64_t bytes)
{
	uint64_t id = 0;

	sim_machine_lock();
	for (uint32_t i = 0; i < SIM_MAX_SHARED && !id; i++) {
		struct sim_shared *s = &sim_machine->shared[i];
		if (s->id)
			continue;
		*s = (struct sim_shared){ .bytes = bytes, .gpu = gpu, .owner = sim_slot };
		s->holders[sim_slot / 64] = 1ull << (sim_slot % 64);
		sim_machine->procs[sim_slot].bytes[gpu] -= bytes;
		id = s->id = sim_machine->next_id++;
	}
	sim_machine_unlock();
	unsigned int *holds = id ? holds_of(id) : NULL;
	if (holds)
		++*holds;
	return id;
}

static struct sim_shared *find(uint64_t id)
{
	for (uint32_t i = 0; id && i < SIM_MAX_SHARED; i++)
		if (sim_machine->shared[i].id == id)
			return &sim_machine->shared[i];
	return NULL;
}

bool sim_share_join(uint64_t id, uint32_t *gpu, uint64_t *bytes)
{
	sim_machine_lock();
	sim_sweep(true);
	struct sim_shared *s = find(id);
	if (s) {
		s->holders[sim_slot / 64] |= 1ull << (sim_slot % 64);
		*gpu = s->gpu;
		*bytes = s->bytes;
	}
	sim_machine_unlock();
	unsigned int *holds = s ? holds_of(id) : NULL;
	if (holds)
		++*holds;
	return s != NULL;
}

void sim_share_leave(uint64_t id)
{
	uint64_t left = 0;
	unsigned int *holds = id ? holds_of(id) : NULL;

	if (!holds || !*holds || --*holds)
		return;
	sim_machine_lock();
	struct sim_shared *s = find(id);
	if (s) {
		s->holders[sim_slot / 64] &= ~(1ull << (sim_slot % 64));
		for (uint32_t w = 0; w < SIM_MAX_PROCS / 64; w++)
			left |= s->holders[w];
		if (!left) {
			sim_flags_forget(SIM_NO_SLOT, id, 0, UINT64_MAX);
			s->id = 0;
		}
	}
	sim_machine_unlock();
}
