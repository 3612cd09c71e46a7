/* SPDX-License-Identifier: Apache-2.0
 *
 * For the programs that test the simulated driver: the calls they make, and how they say what failed.
 * Exit status 0: passed, 1: failed, 77: cannot run here.
 */
#ifndef TEST_DRIVER_H
#define TEST_DRIVER_H

#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

#define CU_HOOK(name, class, params, args) CUresult name params;
#define CU_CALL(name, params) CUresult name params;
#define NVML_HOOK(name, class, params, args) nvmlReturn_t name params;
#define NVML_CALL(name, params) nvmlReturn_t name params;
#include "hooks.def"

CUresult cuDeviceGetName(char *name, int len, CUdevice dev);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuCtxSynchronize(void);
CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t n);
CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t n);
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream);
CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult cuMemAllocHost_v2(void **p, size_t bytes);
CUresult cuMemFreeHost(void *p);
CUresult cuLaunchHostFunc(CUstream stream, void (*fn)(void *), void *user);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size);
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count);
typedef CUipcMemHandle ipc_handle;
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);

static int failures;

#define FAIL(...)                                               \
	do {                                                    \
		if (failures++ >= 20)                           \
			break;                                  \
		printf("%s:%d: ", __FILE__, __LINE__);          \
		printf(__VA_ARGS__);                            \
		printf("\n");                                   \
	} while (0)
#define EXPECT(wanted, call)                                                      \
	do {                                                                      \
		int got_ = (int)(call);                                           \
		if (got_ != (int)(wanted))                                        \
			FAIL("%s: %d, not %d", #call, got_, (int)(wanted));       \
	} while (0)
#define OK(call) EXPECT(0, call)
#define SAME(wanted, value)                                                                                     \
	do {                                                                                                    \
		long long got_ = (long long)(value), want_ = (long long)(wanted);                               \
		if (got_ != want_)                                                                              \
			FAIL("%s: %lld, not %lld", #value, got_, want_);                                        \
	} while (0)
#define WITHIN(low, value, high)                                                                                \
	do {                                                                                                    \
		double got_ = (double)(value);                                                                  \
		if (!(got_ >= (low) && got_ <= (high)))                                                         \
			FAIL("%s: %g, not in [%g, %g]", #value, got_, (double)(low), (double)(high));           \
	} while (0)

static inline double now_ms(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static inline CUcontext start(void)
{
	CUcontext ctx = NULL;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&ctx, 0));
	OK(cuCtxSetCurrent(ctx));
	return ctx;
}

static inline size_t used(void)
{
	size_t free_bytes = 0, total = 0;
	OK(cuMemGetInfo_v2(&free_bytes, &total));
	return total - free_bytes;
}

static const char spin_ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(\n\t.param .u64 ns,\n\t.param .u64 out\n)\n{ ret; }\n"
	".visible .entry gpulimit_touch(.param .u64 ptr, .param .u64 n) { ret; }\n"
	".visible .entry plain() { ret; }\n";

static inline CUfunction kernel(const char *name)
{
	CUmodule module;
	CUfunction f = NULL;
	OK(cuModuleLoadData(&module, spin_ptx));
	OK(cuModuleGetFunction(&f, module, name));
	return f;
}

static inline CUresult spin(CUfunction f, CUstream stream, uint64_t ns, CUdeviceptr out)
{
	void *params[] = { &ns, &out };
	return cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static inline int done(void)
{
	return failures ? 1 : 0;
}

#endif
