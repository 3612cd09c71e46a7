/* SPDX-License-Identifier: Apache-2.0
 *
 * Driver types that the simulated driver reads and the library does not.  Their names differ from the driver's,
 * since abi.h may define those later.  Layouts and values are the driver's.
 */
#ifndef GL_SIM_CUDA_MORE_H
#define GL_SIM_CUDA_MORE_H

#include "../abi.h"

typedef void (*sim_host_fn)(void *user);
typedef void (*sim_stream_callback)(CUstream stream, CUresult status, void *user);

enum {
	SIM_ERROR_INVALID_PTX = 218,
	SIM_ERROR_FILE_NOT_FOUND = 301,
	SIM_ERROR_ILLEGAL_STATE = 401,
	SIM_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
	SIM_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	SIM_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
	SIM_ERROR_STREAM_CAPTURE_MERGE = 902,
	SIM_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
	SIM_ERROR_STREAM_CAPTURE_UNJOINED = 904,
	SIM_ERROR_STREAM_CAPTURE_ISOLATION = 905,
	SIM_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
	SIM_ERROR_CAPTURED_EVENT = 907,
	SIM_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
	SIM_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
};

enum { SIM_MEMORY_HOST = 1, SIM_MEMORY_DEVICE = 2, SIM_MEMORY_ARRAY = 3, SIM_MEMORY_UNIFIED = 4 };

enum {
	SIM_PTR_CONTEXT = 1,
	SIM_PTR_MEMORY_TYPE = 2,
	SIM_PTR_DEVICE_POINTER = 3,
	SIM_PTR_HOST_POINTER = 4,
	SIM_PTR_SYNC_MEMOPS = 6,
	SIM_PTR_BUFFER_ID = 7,
	SIM_PTR_IS_MANAGED = 8,
	SIM_PTR_DEVICE_ORDINAL = 9,
	SIM_PTR_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	SIM_PTR_RANGE_START_ADDR = 11,
	SIM_PTR_RANGE_SIZE = 12,
	SIM_PTR_MAPPED = 13,
	SIM_PTR_ALLOWED_HANDLE_TYPES = 14,
	SIM_PTR_ACCESS_FLAGS = 16,
	SIM_PTR_MEMPOOL_HANDLE = 17,
};

enum {
	SIM_NODE_KERNEL = 0,
	SIM_NODE_MEMCPY = 1,
	SIM_NODE_MEMSET = 2,
	SIM_NODE_HOST = 3,
	SIM_NODE_EMPTY = 5,
	SIM_NODE_WAIT_EVENT = 6,
	SIM_NODE_EVENT_RECORD = 7,
};

typedef struct {
	size_t srcXInBytes, srcY;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
} sim_memcpy2d;

typedef struct {
	size_t srcXInBytes, srcY, srcZ, srcLOD;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	void *reserved0; /* peer copies: the source context */
	size_t srcPitch, srcHeight;
	size_t dstXInBytes, dstY, dstZ, dstLOD;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	void *reserved1;
	size_t dstPitch, dstHeight;
	size_t WidthInBytes, Height, Depth;
} sim_memcpy3d; /* CUDA_MEMCPY3D_PEER has the same layout */

typedef struct {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams, **extra;
} sim_kernel_params_v1;

typedef struct {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams, **extra;
	CUkernel kern;
	CUcontext ctx;
} sim_kernel_params; /* v3, in CUgraphNodeParams, begins with the same fields */

typedef struct {
	CUdeviceptr dst;
	size_t pitch;
	unsigned int value, elementSize;
	size_t width, height;
} sim_memset_params; /* v2 appends the context */

typedef struct {
	int flags, reserved;
	CUcontext copyCtx;
	sim_memcpy3d copyParams;
} sim_memcpy_params;

typedef struct {
	sim_host_fn fn;
	void *userData;
} sim_host_params;

typedef struct { char reserved[64]; } sim_ipc_mem;
typedef struct { char reserved[64]; } sim_ipc_event;

typedef struct {
	size_t size, alignment;
	unsigned int reserved[4];
} sim_array_requirements;

struct sim_update_info {
	CUgraphExecUpdateResult result;
	CUgraphNode errorNode, errorFromNode;
};

struct sim_edge {
	unsigned char from_port, to_port, type, reserved[5];
};

#endif
