/* SPDX-License-Identifier: Apache-2.0
 *
 * Timing events round single launches, and what the host did meanwhile; a library for event_timing.py.
 */
#include <time.h>

#include "../csrc/abi.h"

CUresult cuCtxSynchronize(void);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

/* All in ns. */
struct bracket {
	double between;     /* on the GPU's clock, from event to event */
	double launch;      /* the launch call */
	double second;      /* from the end of the launch call to the end of recording the second event */
	double first;       /* recording the first event */
};

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void spin_host(double ns)
{
	for (double end = now_ns() + ns; now_ns() < end;)
		;
}

static void launch(CUfunction f, long long cycles)
{
	void *args[] = {&cycles};
	cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, args, NULL);
}

/* gap_ns: the host's pause before each bracket, in which the stream runs dry; 0: a kernel of `backlog` cycles is
 * queued before it, so that it does not. */
void brackets(CUfunction f, long long cycles, long long backlog, double gap_ns, struct bracket *out, int count)
{
	CUevent first, second;
	cuEventCreate(&first, 0);
	cuEventCreate(&second, 0);
	for (int i = 0; i < count; i++) {
		cuCtxSynchronize();
		if (gap_ns == 0)
			launch(f, backlog);
		else
			spin_host(gap_ns);
		double t0 = now_ns();
		cuEventRecord(first, NULL);
		double t1 = now_ns();
		launch(f, cycles);
		double t2 = now_ns();
		cuEventRecord(second, NULL);
		double t3 = now_ns();
		float ms = 0;
		cuCtxSynchronize();
		cuEventElapsedTime(&ms, first, second);
		out[i] = (struct bracket){ms * 1e6, t2 - t1, t3 - t2, t1 - t0};
	}
}

/* Median-free: one pair of events back to back behind a backlog. */
double pair_ns(CUfunction f, long long backlog)
{
	CUevent first, second;
	float least = 1e9f;
	cuEventCreate(&first, 0);
	cuEventCreate(&second, 0);
	for (int i = 0; i < 50; i++) {
		float ms = 0;
		launch(f, backlog);
		cuEventRecord(first, NULL);
		cuEventRecord(second, NULL);
		cuCtxSynchronize();
		cuEventElapsedTime(&ms, first, second);
		least = ms < least ? ms : least;
	}
	return least * 1e6;
}
