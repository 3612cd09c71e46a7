/* SPDX-License-Identifier: Apache-2.0
 *
 * cuGetProcAddress answers by name, version and default-stream flag, and with the same pointers as dlsym.
 */
#include <dlfcn.h>

#include "driver.h"

static void check(const char *name, int version, cuuint64_t flags, const char *symbol, int status)
{
	void *pfn = (void *)1, *want = symbol ? dlsym(RTLD_DEFAULT, symbol) : NULL;
	CUdriverProcAddressQueryResult got = -1;
	CUresult result = cuGetProcAddress_v2(name, &pfn, version, flags, &got);
	if (result != (symbol ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND) || pfn != want || got != status)
		FAIL("%s %d %d: result %d, %p, status %d", name, version, (int)flags, result, pfn, got);
	if (symbol && !want)
		FAIL("no %s", symbol);
	pfn = (void *)1;
	EXPECT(symbol ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND, cuGetProcAddress(name, &pfn, version, flags));
}

int main(void)
{
	int version = 0;

	OK(cuDriverGetVersion(&version)); /* before cuInit */
	SAME(13000, version);
	check("cuMemAlloc", 12000, 0, "cuMemAlloc_v2", 0);
	check("cuMemAlloc", 3019, 0, "cuMemAlloc", 0);
	check("cuCtxCreate", 13000, 0, "cuCtxCreate_v4", 0);
	check("cuCtxCreate", 12040, 0, "cuCtxCreate_v3", 0);
	check("cuCtxCreate", 5000, 0, "cuCtxCreate_v2", 0);
	check("cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz", 0);
	check("cuLaunchKernel", 12000, 1, "cuLaunchKernel", 0);
	check("cuLaunchKernel", 5000, 2, "cuLaunchKernel", 0); /* the twin came with 7.0 */
	check("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds", 0);
	check("cuStreamGetCaptureInfo", 11030, 0, "cuStreamGetCaptureInfo_v2", 0);
	check("cuStreamGetCaptureInfo", 13000, 2, "cuStreamGetCaptureInfo_v3_ptsz", 0);
	check("cuMemAllocAsync", 11010, 0, NULL, 2);
	check("cuNoSuchCall", 13000, 0, NULL, 1);
	check("cuStreamBeginCaptureToCig", 13000, 0, NULL, 1); /* newer than this driver */
	check("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2", 0);
	check("cuGetProcAddress", 11030, 0, "cuGetProcAddress", 0);
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2(NULL, NULL, 12000, 0, NULL));
	if (!dlsym(RTLD_DEFAULT, "gpulimit_sim_version"))
		FAIL("it does not say that it is simulated");
	return done();
}
