/* SPDX-License-Identifier: Apache-2.0
 *
 * Injected faults hit the call, and the times, they name.  Needs GPULIMIT_SIM_FAULTS=
 * cuMemAlloc_v2:fail=2:after=1:count=2,cuMemGetInfo_v2:delay_ms=60,cuMemFree_v2:kill=before
 */
#include "driver.h"

int main(void)
{
	CUdeviceptr a, b = 7;
	int status;

	pid_t pid = fork();
	if (!pid) {
		start();
		OK(cuMemAlloc_v2(&a, 1000));
		EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&b, 1000));
		EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&b, 1000));
		SAME(7, b);
		OK(cuMemAlloc_v2(&b, 1000));
		double begin = now_ms();
		used();
		WITHIN(60, now_ms() - begin, 1000);
		fflush(stdout);
		if (failures)
			_exit(1);
		cuMemFree_v2(a);
		_exit(2);
	}
	waitpid(pid, &status, 0);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		FAIL("status %x", status);
	return done();
}
