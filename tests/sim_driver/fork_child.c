/* SPDX-License-Identifier: Apache-2.0
 *
 * After a fork the child's calls say "not initialised"; a child forked before cuInit is like any process.
 */
#include "driver.h"

int main(void)
{
	int status, version;
	OK(cuDriverGetVersion(&version)); /* joins the machine, but the child must join by itself */
	pid_t early = fork();
	if (!early) {
		CUdeviceptr p;
		start();
		OK(cuMemAlloc_v2(&p, 1 << 30));
		_exit(done());
	}
	waitpid(early, &status, 0);
	SAME(0, status);
	start();
	SAME(518 << 20, used());
	pid_t late = fork();
	if (!late) {
		int n;
		size_t a, b;
		CUdeviceptr p;
		EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
		EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemGetInfo_v2(&a, &b));
		EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&p, 10));
		EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuInit(0));
		_exit(done());
	}
	waitpid(late, &status, 0);
	SAME(0, status);
	SAME(518 << 20, used()); /* the child took nothing along */
	return done();
}
