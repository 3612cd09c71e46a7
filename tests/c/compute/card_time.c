/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints, for each line on stdin, the time and how long each simulated GPU has been busy, both in ns: the card's own
 * truth, read from the machine's state.  Overlapping kernels count once.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "sim/machine.h"

int nvmlInit_v2(void), nvmlDeviceGetHandleByIndex_v2(unsigned, void **), nvmlDeviceGetPowerUsage(void *, unsigned *);

int main(void)
{
	char line[64];
	int fd = open(getenv("GPULIMIT_SIM_STATE"), O_RDONLY);
	const struct sim_machine *m = mmap(NULL, sizeof *m, PROT_READ, MAP_SHARED, fd, 0);
	if (fd < 0 || m == MAP_FAILED || nvmlInit_v2())
		return 2;
	while (fgets(line, sizeof line, stdin)) {
		struct timespec t;
		for (unsigned i = 0; i < m->ngpus; i++) {
			void *device;
			unsigned ignored;
			/* Asking brings the schedule up to now. */
			if (nvmlDeviceGetHandleByIndex_v2(i, &device) || nvmlDeviceGetPowerUsage(device, &ignored))
				return 1;
		}
		clock_gettime(CLOCK_MONOTONIC, &t);
		printf("%llu", (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec);
		for (unsigned i = 0; i < m->ngpus; i++)
			printf(" %llu", (unsigned long long)m->gpus[i].busy_ns);
		printf("\n");
		fflush(stdout);
	}
	return 0;
}
