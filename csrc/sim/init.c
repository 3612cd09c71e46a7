/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting libcuda, and the way in and out of every exported function.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "sim.h"

enum { UNTRIED, READY, FAILED };
static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int state = UNTRIED;
static atomic_bool forked;

void sim_lock(void) { pthread_mutex_lock(&process_lock); }
void sim_unlock(void) { pthread_mutex_unlock(&process_lock); }

/* The card's contexts do not follow a fork: every call in the child says so, for ever. */
static void in_child(void)
{
	atomic_store(&forked, true);
}

bool sim_enter(struct sim_call *call, bool early, CUresult *result)
{
	if (sim_fault_enter(call->site, result))
		return true;
	if (early)
		return false;
	if (atomic_load_explicit(&state, memory_order_acquire) != READY || atomic_load_explicit(&forked, memory_order_relaxed)) {
		*result = CUDA_ERROR_NOT_INITIALIZED;
		return true;
	}
	sim_lock();
	call->locked = true;
	return false;
}

void sim_leave(struct sim_call *call)
{
	if (call->locked)
		sim_unlock();
	sim_fault_leave(call->site);
}

SIM_EXPORT CUresult cuInit(unsigned int flags)
{
	SIM_ENTER_EARLY(cuInit);
	CUresult result = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (atomic_load(&forked))
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&init_lock);
	if (atomic_load(&state) != READY) {
		if (sim_attached() || sim_attach(SIM_SLOT_CUDA)) {
			sim_visible_devices();
			result = sim_device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
		} else {
			result = CUDA_ERROR_UNKNOWN;
		}
		if (result == CUDA_SUCCESS) {
			pthread_atfork(NULL, NULL, in_child);
			atomic_store_explicit(&state, READY, memory_order_release);
		}
	}
	pthread_mutex_unlock(&init_lock);
	return result;
}

SIM_EXPORT CUresult cuDriverGetVersion(int *version)
{
	SIM_ENTER_EARLY(cuDriverGetVersion);

	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	/* Known before cuInit, as on a real driver; the machine is joined for it without a context. */
	pthread_mutex_lock(&init_lock);
	bool ok = sim_attached() || sim_attach(SIM_SLOT_CUDA);
	pthread_mutex_unlock(&init_lock);
	if (!ok)
		return CUDA_ERROR_UNKNOWN;
	*version = (int)sim_machine->cuda_version;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	SIM_ENTER_EARLY(cuGetProcAddress);
	return sim_proc_address(symbol, pfn, version, flags, NULL);
}

SIM_EXPORT CUresult cuGetProcAddress_v2(
	const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	SIM_ENTER_EARLY(cuGetProcAddress_v2);
	return sim_proc_address(symbol, pfn, version, flags, status);
}

SIM_EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	SIM_ENTER_EARLY(cuGetExportTable);
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_ERROR_NOT_FOUND; /* the private tables of the real driver are not simulated */
}
