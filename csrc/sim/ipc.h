/* SPDX-License-Identifier: Apache-2.0
 *
 * Export of plain memory to other processes, shared by ipc.c and pool_object.c.
 */
#ifndef GL_SIM_IPC_H
#define GL_SIM_IPC_H

#include "sim.h"

struct sim_ipc { /* at most 64 bytes: the content of the driver's opaque handles */
	uint64_t magic, shared_id, bytes, mapped_bytes;
	int32_t pid, fd;
	uint32_t gpu, unused;
};
CUresult sim_ipc_export(struct sim_block *block, struct sim_ipc *ipc);
CUresult sim_ipc_open(CUcontext ctx, const struct sim_ipc *ipc, bool of_pool, CUdeviceptr *out);

#endif
