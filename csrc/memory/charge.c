/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps that every allocation hook takes, in one place so that no hook omits one: reserve, ask the driver, then
 * commit (record the block) or cancel (uncharge the reservation).  Called by hooks only.
 */
#include "shim.h"

bool gl_device_barred(CUdevice dev)
{
	int count;
	return gl_load_acquire(&gl_self.gpus_ready) && dev >= gl_self.gpu_count &&
	       REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS && dev < count;
}

/* The gpu of the current context.  False: the context's device cannot be put under quota. */
static bool current(struct gl_gpu **gpu, CUcontext *context)
{
	CUdevice dev;
	*gpu = NULL;
	*context = NULL;
	if (REAL(cuCtxGetDevice)(&dev) != CUDA_SUCCESS)
		return true;
	(void)REAL(cuCtxGetCurrent)(context);
	*gpu = gl_gpu_of(dev);
	return *gpu != NULL;
}

static bool reserve(struct gl_charge *charge)
{
	if (gl_reserve_uncounted(charge->gpu, charge->kind, charge->bytes) != 0)
		return false;
	gl_in_flight_begin(charge->gpu);
	return charge->in_flight = true;
}

bool gl_charge_begin(struct gl_charge *charge, enum gl_memory_kind kind, uint64_t bytes)
{
	*charge = (struct gl_charge){.kind = kind, .bytes = bytes};
	if (!current(&charge->gpu, &charge->context))
		return false;
	return !charge->gpu || reserve(charge);
}

bool gl_charge_begin_on(struct gl_charge *charge, struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes)
{
	*charge = (struct gl_charge){.gpu = gpu, .kind = kind, .bytes = bytes};
	return reserve(charge);
}

CUresult gl_charge_refused(const struct gl_charge *charge, CUresult verdict)
{
	if (verdict != CUDA_SUCCESS && verdict != CUDA_ERROR_OUT_OF_MEMORY)
		return verdict;
	if (charge->gpu)
		gl_count_refusal(charge->gpu, charge->bytes);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

bool gl_charge_correct(struct gl_charge *charge, uint64_t bytes)
{
	if (charge->gpu && gl_recharge_within(charge->gpu, charge->kind, charge->bytes, bytes) != 0)
		return false;
	charge->bytes = bytes;
	return true;
}

static void settled(struct gl_charge *charge)
{
	if (charge->in_flight)
		gl_in_flight_end(charge->gpu);
	charge->in_flight = false;
}

static void give_back(struct gl_charge *charge)
{
	if (charge->gpu)
		gl_uncharge(charge->gpu, charge->kind, charge->bytes);
	settled(charge);
}

bool gl_charge_commit(struct gl_charge *charge, enum gl_space space, uint64_t key)
{
	/* The driver made a context by itself: charges the memory that it takes. */
	if (!charge->gpu && (!current(&charge->gpu, &charge->context) ||
			     (charge->gpu && !reserve(charge)))) {
		(void)gl_charge_refused(charge, CUDA_SUCCESS);
		charge->gpu = NULL;
		return false;
	}
	if (!charge->gpu)
		return true;
	struct gl_block old, block = {
		.key = key,
		.bytes = charge->bytes,
		.context = charge->context,
		.space = space,
		.ordinal = (uint32_t)charge->gpu->ordinal,
		.kind = charge->kind,
	};
	settled(charge); /* the driver has allocated, so account and card agree */
	bool fits = gl_overhead_fits_rounded(charge->gpu);
	if (!fits)
		gl_count_refusal(charge->gpu, charge->bytes);
	if (!fits || gl_block_put(&block, &old) != 0) {
		give_back(charge);
		return false;
	}
	/* The driver returned the address again, so the old block was freed by a call that the hooks did not see. */
	if (old.space)
		gl_uncharge_block(&old);
	return true;
}

CUresult gl_charge_cancel(struct gl_charge *charge, CUresult result)
{
	give_back(charge);
	if (result == CUDA_ERROR_OUT_OF_MEMORY && charge->gpu)
		gl_count_card_refusal(charge->gpu);
	return result;
}

void gl_uncharge_begin(const struct gl_block *block)
{
	if (block->space)
		gl_in_flight_begin(gl_gpu_of((CUdevice)block->ordinal));
}

void gl_uncharge_end(const struct gl_block *block, CUresult result)
{
	if (!block->space)
		return;
	if (result == CUDA_SUCCESS)
		gl_uncharge_block(block);
	else
		(void)gl_block_put(block, NULL);
	gl_in_flight_end(gl_gpu_of((CUdevice)block->ordinal));
}
