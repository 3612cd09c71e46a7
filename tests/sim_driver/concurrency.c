/* SPDX-License-Identifier: Apache-2.0
 *
 * On a card that runs several kernels of a context at once, streams overlap, one stream does not, events
 * order streams, and the legacy stream waits for the others.  Needs GPULIMIT_SIM_SET=concurrency=4.
 */
#include "driver.h"

static CUfunction f;

static double wait_ms(double begin)
{
	OK(cuCtxSynchronize());
	return now_ms() - begin;
}

int main(void)
{
	CUstream stream[4];
	CUevent event, first, last;
	float ms;

	start();
	f = kernel("gpulimit_spin");
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&first, 0));
	OK(cuEventCreate(&last, 0));
	for (int i = 0; i < 4; i++)
		OK(cuStreamCreate(&stream[i], CU_STREAM_DEFAULT));
	OK(spin(f, stream[0], 1000, 0));
	OK(cuCtxSynchronize());

	double begin = now_ms();
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < 5; k++)
			OK(spin(f, stream[i], 4000000, 0));
	WITHIN(19.9, wait_ms(begin), 45);

	begin = now_ms(); /* a chain over streams */
	for (int i = 0; i < 4; i++) {
		OK(spin(f, stream[i], 10000000, 0));
		OK(cuEventRecord(event, stream[i]));
		if (i < 3)
			OK(cuStreamWaitEvent(stream[i + 1], event, 0));
	}
	OK(cuStreamSynchronize(stream[0]));
	WITHIN(9.9, now_ms() - begin, 25);
	EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream[3]));
	EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
	WITHIN(39.9, wait_ms(begin), 70);
	OK(cuStreamQuery(NULL));

	begin = now_ms(); /* the legacy stream after all, and all after it */
	OK(cuEventRecord(first, stream[0]));
	OK(spin(f, stream[0], 10000000, 0));
	OK(spin(f, stream[1], 20000000, 0));
	OK(spin(f, NULL, 10000000, 0));
	OK(spin(f, stream[2], 10000000, 0));
	OK(cuEventRecord(last, stream[2]));
	OK(cuEventSynchronize(last));
	WITHIN(39.9, now_ms() - begin, 70);
	OK(cuEventElapsedTime(&ms, first, last));
	WITHIN(39.9, ms, 41);
	return done();
}
