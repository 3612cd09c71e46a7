/* SPDX-License-Identifier: Apache-2.0
 *
 * Host functions run in the order of their stream, after the work before and before the work behind.
 */
#include "driver.h"

static double begin, called_at[3];
static int calls;

static void note(void *unused)
{
	(void)unused;
	called_at[calls++] = now_ms() - begin;
}

int main(void)
{
	CUevent event;
	start();
	CUfunction f = kernel("gpulimit_spin");
	OK(cuEventCreate(&event, 0));
	OK(cuCtxSynchronize());
	begin = now_ms();
	for (int i = 0; i < 3; i++) {
		OK(spin(f, NULL, 10000000, 0));
		OK(cuLaunchHostFunc(NULL, note, NULL));
	}
	OK(cuEventRecord(event, NULL));
	EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
	OK(cuCtxSynchronize());
	SAME(3, calls);
	for (int i = 0; i < 3; i++)
		WITHIN(10 * (i + 1), called_at[i], 10 * (i + 1) + 60);
	return done();
}
