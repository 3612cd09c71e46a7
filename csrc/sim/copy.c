/* SPDX-License-Identifier: Apache-2.0
 *
 * How copies and fills work: checking, cost, and moving the bytes.
 *
 * Bytes move when the work is submitted, in order of submission, which is the order in which the card
 * would do it.  Of a single copy or fill at most 64 MiB really move, so that huge ones cost no memory.
 */
#include <string.h>

#include "array.h"
#include "graph.h"

#define MAX_MOVED_BYTES (64ull << 20)

/* One side of a copy: where its bytes are, and how far rows and slices are apart. */
struct side {
	char *base;
	size_t pitch, slice;
	bool device;
};

/* What is recorded into a graph may name memory that the graph has yet to take. */
static bool nameable(uint64_t addr, uint64_t bytes)
{
	return sim_range_ok(addr, bytes) || sim_graph_memory_planned(addr, bytes);
}

static uint64_t extent(size_t pitch, size_t slice, const sim_memcpy3d *p)
{
	return (p->Depth - 1) * slice + (p->Height - 1) * pitch + p->WidthInBytes;
}

static CUresult find_side(const sim_memcpy3d *p, bool source, struct side *side)
{
	int type = source ? p->srcMemoryType : p->dstMemoryType;
	size_t pitch = source ? p->srcPitch : p->dstPitch, height = source ? p->srcHeight : p->dstHeight;
	size_t x = source ? p->srcXInBytes : p->dstXInBytes, y = source ? p->srcY : p->dstY, z = source ? p->srcZ : p->dstZ;
	CUdeviceptr device = source ? p->srcDevice : p->dstDevice;
	const void *host = source ? p->srcHost : p->dstHost;
	CUarray array = source ? p->srcArray : p->dstArray;

	side->device = type == SIM_MEMORY_DEVICE || type == SIM_MEMORY_ARRAY;
	if (type == SIM_MEMORY_ARRAY) {
		if (!sim_handle_is(array, SIM_ARRAY))
			return CUDA_ERROR_INVALID_HANDLE;
		device = array->addr;
		pitch = array->pitch;
		height = array->height;
	}
	side->pitch = pitch ? pitch : p->WidthInBytes;
	side->slice = side->pitch * (height ? height : p->Height);
	side->base = type == SIM_MEMORY_HOST ? (char *)(uintptr_t)host : (char *)(uintptr_t)device;
	if (type == SIM_MEMORY_UNIFIED)
		side->device = sim_block_with(device) != NULL;
	side->base += z * side->slice + y * side->pitch + x;
	if (!side->base || (p->Height > 1 && side->pitch < p->WidthInBytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (side->device && !nameable((uintptr_t)side->base, extent(side->pitch, side->slice, p)))
		return CUDA_ERROR_INVALID_VALUE;
	return type < SIM_MEMORY_HOST || type > SIM_MEMORY_UNIFIED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult sim_copy_check(const struct sim_copy *copy)
{
	struct side side;

	if (!copy->bytes)
		return CUDA_SUCCESS;
	SIM_TRY(find_side(&copy->params, true, &side));
	return find_side(&copy->params, false, &side);
}

uint64_t sim_copy_cost(CUcontext ctx, const struct sim_copy *copy)
{
	const struct sim_model *m = sim_model_of(ctx->gpu);
	struct side from = { 0 }, to = { 0 };

	if (!copy->bytes)
		return 0;
	find_side(&copy->params, true, &from);
	find_side(&copy->params, false, &to);
	/* On the card every byte is read and written. */
	if (from.device && to.device)
		return 2 * copy->bytes * 1000 / m->memory_bytes_per_us + 1000;
	return copy->bytes * 1000 / m->copy_bytes_per_us + 1000;
}

void sim_copy_effect(const struct sim_copy *copy)
{
	const sim_memcpy3d *p = &copy->params;
	struct side from, to;
	uint64_t moved = 0;

	if (!copy->bytes || find_side(p, true, &from) || find_side(p, false, &to))
		return;
	if (to.device)
		sim_touch_managed((uintptr_t)to.base, copy->bytes);
	for (size_t z = 0; z < p->Depth; z++) {
		for (size_t y = 0; y < p->Height && moved < MAX_MOVED_BYTES; y++) {
			size_t n = p->WidthInBytes < MAX_MOVED_BYTES - moved ? p->WidthInBytes : MAX_MOVED_BYTES - moved;
			memmove(to.base + z * to.slice + y * to.pitch, from.base + z * from.slice + y * from.pitch, n);
			moved += n;
		}
	}
}

static void fill(char *at, unsigned int value, unsigned int element, size_t n)
{
	if (element == 1) {
		memset(at, (int)value, n);
		return;
	}
	for (size_t i = 0; i < n; i++, at += element) {
		if (element == 2) {
			uint16_t half = (uint16_t)value;
			memcpy(at, &half, 2);
		} else {
			memcpy(at, &value, 4);
		}
	}
}

static void set_now(const sim_memset_params *s)
{
	uint64_t left = MAX_MOVED_BYTES / s->elementSize;

	sim_touch_managed(s->dst, (uint64_t)s->width * s->elementSize * s->height);
	for (size_t y = 0; y < s->height && left; y++) {
		size_t n = s->width < left ? s->width : left;
		fill((char *)(uintptr_t)(s->dst + y * s->pitch), s->value, s->elementSize, n);
		left -= n;
	}
}

/* Copy now, but for the flags among the bytes; see word.c. */
void sim_copy_but_flags(const struct sim_copy *copy, struct sim_held *held)
{
	const sim_memcpy3d *p = &copy->params;
	struct side to;

	held->n = 0;
	if (!copy->bytes || find_side(p, false, &to))
		return;
	if (to.device)
		sim_words_hold(held, (uintptr_t)to.base, extent(to.pitch, to.slice, p));
	sim_copy_effect(copy);
	sim_words_keep(held);
}

/* A flag that went to the host goes there again once the card has come so far. */
void sim_copy_flags_late(CUstream stream, const struct sim_copy *copy)
{
	struct side from, to;

	if (copy->bytes && !find_side(&copy->params, true, &from) && !find_side(&copy->params, false, &to) && from.device && !to.device)
		sim_words_copied(stream, copy, (uintptr_t)from.base);
}

CUresult sim_copy_submit(CUstream stream, const struct sim_copy *copy)
{
	struct sim_held held;

	sim_copy_but_flags(copy, &held);
	SIM_TRY(sim_submit(stream, sim_copy_cost(stream->ctx, copy), NULL));
	sim_copy_flags_late(stream, copy);
	return sim_words_change(stream, &held);
}

void sim_memset_but_flags(const sim_memset_params *s, struct sim_held *held)
{
	sim_words_hold(held, s->dst, (s->height - 1) * s->pitch + (uint64_t)s->width * s->elementSize);
	set_now(s);
	sim_words_keep(held);
}

CUresult sim_memset_submit(CUstream stream, const sim_memset_params *s)
{
	struct sim_held held;

	sim_memset_but_flags(s, &held);
	SIM_TRY(sim_submit(stream, sim_memset_cost(stream->ctx, s), NULL));
	return sim_words_change(stream, &held);
}

CUresult sim_memset_check(const sim_memset_params *s)
{
	uint64_t row = (uint64_t)s->width * s->elementSize;

	if (s->elementSize != 1 && s->elementSize != 2 && s->elementSize != 4)
		return CUDA_ERROR_INVALID_VALUE;
	if (!s->width || !s->height)
		return CUDA_SUCCESS;
	if ((s->height > 1 && s->pitch < row) || s->dst % s->elementSize)
		return CUDA_ERROR_INVALID_VALUE;
	return nameable(s->dst, (s->height - 1) * s->pitch + row) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

uint64_t sim_memset_cost(CUcontext ctx, const sim_memset_params *s)
{
	return (uint64_t)s->width * s->elementSize * s->height * 1000 / sim_model_of(ctx->gpu)->memory_bytes_per_us + 1000;
}
