/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: needed for most calls, kept on a stack per thread, ended with all they hold.
 */
#include "driver.h"

int main(void)
{
	CUcontext a, b, current;
	CUdeviceptr p;
	CUstream stream;
	unsigned int flags;
	int active;

	EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDevicePrimaryCtxRetain(&a, 0));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
	OK(cuInit(0));
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&p, 10));
	EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&a, 7));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	SAME(0, active);
	OK(cuCtxCreate_v2(&a, 0, 0));
	OK(cuCtxCreate_v2(&b, 0, 0));
	OK(cuCtxGetCurrent(&current));
	SAME((uintptr_t)b, (uintptr_t)current);
	OK(cuStreamCreate(&stream, 0));
	OK(cuMemAlloc_v2(&p, 10 << 20));
	OK(cuCtxDestroy_v2(b));
	OK(cuCtxGetCurrent(&current));
	SAME((uintptr_t)a, (uintptr_t)current);
	SAME(518 << 20, used());
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(b));
	OK(cuCtxPopCurrent_v2(&current));
	OK(cuCtxGetCurrent(&current));
	SAME(0, (uintptr_t)current);
	OK(cuDevicePrimaryCtxRetain(&b, 0));
	OK(cuDevicePrimaryCtxRetain(&b, 0));
	OK(cuCtxPushCurrent_v2(b));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	SAME(2 * (518 << 20), used());
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&p, 10));
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
	return done();
}
