/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that make the first CUDA calls of the process at the same moment: the process joins its tenant once, and
 * together they get what the quota allows.  Usage: first_calls THREADS EXPECTED-GRANTS, each asking for 8 MiB.
 */
#include <pthread.h>

#include "books.h"

static pthread_barrier_t barrier;
static int granted, refused, other;

static void *first(void *arg)
{
	CUcontext context;
	CUdeviceptr p;
	nvmlDevice_t device;
	nvmlMemory_t memory;
	pthread_barrier_wait(&barrier);
	if ((uintptr_t)arg % 3 == 2 && (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) ||
					 nvmlDeviceGetMemoryInfo(device, &memory) || memory.total != 64 << 20))
		FAIL("NVML does not show the quota");
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	CUresult r = cuMemAlloc_v2(&p, 8 << 20);
	__atomic_fetch_add(r == CUDA_SUCCESS ? &granted : r == CUDA_ERROR_OUT_OF_MEMORY ? &refused : &other, 1,
			   __ATOMIC_RELAXED);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread[64];
	start_card(argc, argv);
	int threads = atoi(argv[1]), slots = 0;
	pthread_barrier_init(&barrier, NULL, (unsigned)threads);
	for (int i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, first, (void *)(uintptr_t)i);
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < GL_MAX_SLOTS; i++)
		slots += books()->slot[i].generation % 2;
	if (granted != atoi(argv[2]) || granted + refused != threads || other || slots != 1)
		FAIL("%d granted, %d refused, %d other, %d slots", granted, refused, other, slots);
	TRUE_BYTES((uint64_t)granted * (8 << 20));
	return failures != 0;
}
