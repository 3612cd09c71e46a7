/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML's utilisation: none of a process in its first second, then an average that creeps up; the card's
 * own rate follows at once.
 */
#include "driver.h"

struct rates { unsigned int gpu, memory; };
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct rates *rates);

static nvmlDevice_t device;

static unsigned int process_percent(void)
{
	nvmlProcessUtilizationSample_t samples[4];
	unsigned int n = 4;
	OK(nvmlDeviceGetProcessUtilization(device, samples, &n, 0));
	SAME(1, n);
	SAME(getpid(), samples[0].pid);
	return samples[0].smUtil;
}

static void busy(CUfunction f, int ms)
{
	for (int i = 0; i < ms / 10; i++) {
		OK(spin(f, NULL, 10000000, 0));
		OK(cuStreamSynchronize(NULL));
	}
}

int main(void)
{
	nvmlProcessUtilizationSample_t sample;
	struct rates rates;
	unsigned int n = 1;

	start();
	OK(nvmlInit_v2());
	OK(nvmlDeviceGetHandleByIndex_v2(0, &device));
	CUfunction f = kernel("gpulimit_spin");
	OK(nvmlDeviceGetUtilizationRates(device, &rates));
	SAME(0, rates.gpu);
	busy(f, 500);
	EXPECT(NVML_ERROR_NOT_FOUND, nvmlDeviceGetProcessUtilization(device, &sample, &n, 0));
	busy(f, 800);
	OK(nvmlDeviceGetUtilizationRates(device, &rates));
	WITHIN(80, rates.gpu, 100);
	unsigned int early = process_percent();
	WITHIN(20, early, 40);
	busy(f, 1000);
	WITHIN(early + 10, process_percent(), 75);
	return done();
}
