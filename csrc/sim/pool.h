/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools, shared by pool.c and pool_object.c.
 */
#ifndef GL_SIM_POOL_H
#define GL_SIM_POOL_H

#include "sim.h"

struct CUmemPoolHandle_st {
	struct CUmemPoolHandle_st *next;
	bool present, is_default, on_host, dying, imported;
	CUdevice device;
	uint32_t gpu;
	uint64_t reserved, reserved_high, used, used_high, threshold, most;
	int reuse[3];
	int handle_types;
};
CUmemoryPool sim_default_pool(CUdevice dev);
CUmemoryPool sim_chosen_pool(CUdevice dev);
void sim_choose_pool(CUdevice dev, CUmemoryPool pool);
CUresult sim_pool_allocate(CUdeviceptr *out, uint64_t bytes, CUmemoryPool pool, CUcontext ctx);
void sim_pool_begin(CUmemoryPool pool);
void sim_pool_end(CUmemoryPool pool);
void sim_pool_trim(CUmemoryPool pool, uint64_t keep);

#endif
