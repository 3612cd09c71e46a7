/* SPDX-License-Identifier: Apache-2.0
 *
 * A context takes 1024 unfinished launches; the next one waits for room.
 */
#include "driver.h"

int main(void)
{
	CUdeviceptr out;
	uint64_t count = 0;

	start();
	CUfunction f = kernel("gpulimit_spin");
	OK(cuMemAlloc_v2(&out, 8));
	OK(cuMemsetD32_v2(out, 0, 2));
	OK(cuCtxSynchronize());
	OK(spin(f, NULL, 100000000, out));
	double begin = now_ms();
	for (int i = 0; i < 1023; i++)
		OK(spin(f, NULL, 1000, out));
	WITHIN(0, now_ms() - begin, 80);
	OK(spin(f, NULL, 1000, out));
	WITHIN(60, now_ms() - begin, 400);
	OK(cuCtxSynchronize());
	OK(cuMemcpyDtoH_v2(&count, out, 8));
	SAME(1025, count);
	return done();
}
