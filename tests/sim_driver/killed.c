/* SPDX-License-Identifier: Apache-2.0
 *
 * A process killed with SIGKILL leaves nothing: its memory, its context and its queued work are gone, and
 * the machine is not locked.  Killing goes on for a while at random moments to hit the lock held.
 */
#include "driver.h"

static void child(bool churn)
{
	CUdeviceptr p;
	start();
	CUfunction f = kernel("gpulimit_spin");
	OK(cuMemAlloc_v2(&p, 1ull << 30));
	for (int i = 0; i < 100; i++)
		OK(spin(f, NULL, 1000000000, 0));
	while (churn) {
		OK(cuMemAlloc_v2(&p, 1000));
		OK(cuMemAllocAsync(&p, 1000, NULL));
		OK(cuMemFreeAsync(p, NULL));
	}
	pause();
}

static void kill_after(useconds_t us, bool churn)
{
	pid_t pid = fork();
	if (!pid)
		child(churn);
	usleep(us);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

int main(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	unsigned int n = 0;

	kill_after(300000, false);
	OK(nvmlInit_v2());
	OK(nvmlDeviceGetHandleByIndex_v2(0, &device));
	OK(nvmlDeviceGetMemoryInfo(device, &memory));
	SAME(551 << 20, memory.used);
	OK(nvmlDeviceGetComputeRunningProcesses(device, &n, NULL));
	SAME(0, n);
	for (int i = 0; i < 30; i++)
		kill_after((useconds_t)(15000 + i * 700), true);
	start();
	SAME(518 << 20, used());
	CUfunction f = kernel("gpulimit_spin");
	double begin = now_ms();
	OK(spin(f, NULL, 1000000, 0));
	OK(cuCtxSynchronize());
	WITHIN(1, now_ms() - begin, 100); /* not behind seconds of dead work */
	return done();
}
