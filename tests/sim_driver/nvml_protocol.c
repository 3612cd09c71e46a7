/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML: nothing before nvmlInit, counted shutdowns, the size protocol of lists, versions of structures.
 */
#include "driver.h"

int main(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	nvmlMemory_v2_t memory2 = { 0 };
	nvmlProcessInfo_v2_t infos[4];
	nvmlProcessUtilizationSample_t samples[4];
	unsigned int n;

	EXPECT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&n));
	EXPECT(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
	OK(nvmlInit_v2());
	OK(nvmlInit_v2());
	OK(nvmlShutdown());
	OK(nvmlDeviceGetCount_v2(&n));
	SAME(1, n);
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(1, &device));
	OK(nvmlDeviceGetHandleByIndex_v2(0, &device));
	EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo((nvmlDevice_t)8, &memory));
	EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetMemoryInfo_v2(device, &memory2));
	memory2.version = NVML_MEMORY_V2;
	OK(nvmlDeviceGetMemoryInfo_v2(device, &memory2));
	SAME(551 << 20, memory2.reserved);
	SAME(0, memory2.used);
	n = 0;
	OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &n, NULL));
	SAME(0, n);
	start();
	EXPECT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetComputeRunningProcesses_v3(device, &n, NULL));
	SAME(1, n);
	OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &n, infos));
	SAME(getpid(), infos[0].pid);
	SAME(518 << 20, infos[0].usedGpuMemory);
	n = 4;
	OK(nvmlDeviceGetGraphicsRunningProcesses_v3(device, &n, infos));
	SAME(0, n);
	n = 4;
	EXPECT(NVML_ERROR_NOT_FOUND, nvmlDeviceGetProcessUtilization(device, samples, &n, 0));
	OK(nvmlShutdown());
	EXPECT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&n));
	return done();
}
