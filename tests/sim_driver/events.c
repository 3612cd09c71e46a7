/* SPDX-License-Identifier: Apache-2.0
 *
 * Events carry the card's own time: elapsed time is the work between, and not what the
 * host did afterwards.
 */
#include "driver.h"

int main(void)
{
	CUevent a, b, untimed;
	CUstream stream;
	float ms = -1;

	start();
	CUfunction f = kernel("gpulimit_spin");
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&a, CU_EVENT_DEFAULT));
	OK(cuEventCreate(&b, CU_EVENT_DEFAULT));
	OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
	EXPECT(CUDA_SUCCESS, cuEventQuery(a)); /* never recorded counts as done */
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, a, b));
	OK(cuEventRecord(a, stream));
	for (int i = 0; i < 50; i++)
		OK(spin(f, stream, 200000, 0));
	OK(cuEventRecord(b, stream));
	OK(cuEventRecord(untimed, stream));
	EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(b));
	EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
	EXPECT(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, a, b));
	OK(cuEventSynchronize(b));
	OK(cuEventElapsedTime(&ms, a, b));
	WITHIN(10.0, ms, 10.2);
	OK(cuStreamSynchronize(stream));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, a, untimed));
	usleep(20000);
	OK(cuEventElapsedTime(&ms, a, b));
	WITHIN(10.0, ms, 10.2);
	/* Far more records than the queue is deep: stamps survive. */
	OK(cuEventRecord(a, stream));
	for (int i = 0; i < 3000; i++)
		OK(spin(f, stream, 2000, 0));
	OK(cuEventRecord(b, stream));
	OK(cuEventSynchronize(b));
	OK(cuEventElapsedTime(&ms, a, b));
	WITHIN(6.0, ms, 200);
	OK(cuEventDestroy_v2(a));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy_v2(a));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(a));
	return done();
}
