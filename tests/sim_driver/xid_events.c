/* SPDX-License-Identifier: Apache-2.0
 *
 * An error of the card reaches NVML's event sets; a lost card fails every call about it until it is back.
 */
#include "driver.h"

typedef struct nvmlEventSet_st *nvmlEventSet_t;
struct event_data {
	nvmlDevice_t device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct event_data *data, unsigned int timeout_ms);
nvmlReturn_t gpulimit_sim_xid(unsigned int index, unsigned int xid);

int main(void)
{
	nvmlDevice_t device;
	nvmlEventSet_t set;
	nvmlMemory_t memory;
	struct event_data data;
	CUdeviceptr p;
	int status;

	OK(nvmlInit_v2());
	OK(nvmlDeviceGetHandleByIndex_v2(0, &device));
	OK(nvmlEventSetCreate(&set));
	OK(nvmlDeviceRegisterEvents(device, 8, set));
	EXPECT(10, nvmlEventSetWait_v2(set, &data, 20));
	pid_t pid = fork();
	if (!pid) {
		usleep(50000);
		_exit(gpulimit_sim_xid(0, 31));
	}
	OK(nvmlEventSetWait_v2(set, &data, 5000));
	SAME(31, data.data);
	SAME((uintptr_t)device, (uintptr_t)data.device);
	EXPECT(10, nvmlEventSetWait_v2(set, &data, 0));
	waitpid(pid, &status, 0);
	SAME(0, status);
	start();
	CUfunction f = kernel("gpulimit_spin");
	OK(spin(f, NULL, 1000, 0));
	OK(gpulimit_sim_xid(0, 79));
	EXPECT(NVML_ERROR_GPU_IS_LOST, nvmlDeviceGetMemoryInfo(device, &memory));
	EXPECT(CUDA_ERROR_UNKNOWN, cuMemAlloc_v2(&p, 100));
	EXPECT(CUDA_ERROR_UNKNOWN, spin(f, NULL, 1000, 0));
	OK(nvmlEventSetWait_v2(set, &data, 0));
	SAME(79, data.data);
	OK(gpulimit_sim_xid(0, 0));
	OK(nvmlDeviceGetMemoryInfo(device, &memory));
	OK(cuMemAlloc_v2(&p, 100));
	OK(nvmlEventSetFree(set));
	return done();
}
