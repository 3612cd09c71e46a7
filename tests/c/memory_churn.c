/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that take and give back memory in every way at once, at random, under a quota that they keep hitting.  The
 * books must never pass the quota, and all must be back at the end.
 *
 * Usage: memory_churn THREADS STEPS SEED.  With GPULIMIT_TEST_REAL set it runs on a real card as well.  Exit status 0: all held.
 */
#include <pthread.h>

#include "books.h"

enum { HELD = 24, MAX_PIECE_BYTES = 4 << 20 };
static CUdevice dev;
static CUcontext context;
static int steps;
static uint64_t most_seen, refused;

struct held {
	enum { NOTHING, PLAIN, PITCHED, MANAGED, ARRAY, ASYNC, VMM } kind;
	uint64_t handle;
};

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	return *state ^= *state << 17;
}

static CUresult take(struct held *held, int kind, size_t bytes, CUstream stream)
{
	CUDA_ARRAY_DESCRIPTOR flat = {1024, bytes / 4096 + 1, CU_AD_FORMAT_FLOAT, 1};
	CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}};
	CUdeviceptr pointer = 0;
	CUarray array = NULL;
	CUmemGenericAllocationHandle handle = 0;
	size_t pitch;
	CUresult r = kind == PLAIN     ? cuMemAlloc_v2(&pointer, bytes)
		     : kind == PITCHED ? cuMemAllocPitch_v2(&pointer, &pitch, 100 + bytes % 900, bytes / 1000 + 1, 4)
		     : kind == MANAGED ? cuMemAllocManaged(&pointer, bytes, 1)
		     : kind == ASYNC   ? cuMemAllocAsync(&pointer, bytes, stream)
		     : kind == ARRAY   ? cuArrayCreate_v2(&array, &flat)
				       : cuMemCreate(&handle, 2 << 20, &prop, 0);
	if (r == CUDA_SUCCESS)
		*held = (struct held){kind, pointer ? pointer : array ? (uint64_t)(uintptr_t)array : handle};
	return r;
}

static void give(struct held *held, uint64_t luck, CUstream stream)
{
	if (held->kind == ARRAY)
		OK(cuArrayDestroy((CUarray)(uintptr_t)held->handle));
	else if (held->kind == VMM)
		OK(cuMemRelease(held->handle));
	else if (held->kind == ASYNC || (luck % 4 == 0 && (held->kind != MANAGED || !getenv("GPULIMIT_TEST_REAL"))))
		OK(cuMemFreeAsync(held->handle, stream));
	else
		OK(cuMemFree_v2(held->handle));
	held->kind = NOTHING;
}

static void note_books(void)
{
	uint64_t now = booked(), most = __atomic_load_n(&most_seen, __ATOMIC_RELAXED);
	while (now > most && !__atomic_compare_exchange_n(&most_seen, &most, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

static void *churn(void *arg)
{
	struct held held[HELD] = {{NOTHING, 0}};
	uint64_t state = (uint64_t)(uintptr_t)arg;
	CUstream stream;
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < steps; i++) {
		struct held *slot = &held[next(&state) % HELD];
		if (slot->kind != NOTHING) {
			give(slot, next(&state), stream);
		} else {
			CUresult r = take(slot, (int)(next(&state) % 6) + 1, next(&state) % MAX_PIECE_BYTES + 1, stream);
			if (r == CUDA_ERROR_OUT_OF_MEMORY)
				__atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
			else if (r != CUDA_SUCCESS)
				FAIL("an allocation gave %d", r);
		}
		note_books();
	}
	for (int i = 0; i < HELD; i++)
		if (held[i].kind != NOTHING)
			give(&held[i], next(&state), stream);
	OK(cuStreamSynchronize(stream));
	OK(cuStreamDestroy_v2(stream));
	return NULL;
}

int main(int argc, char **argv)
{
	start_card(argc, argv);
	if (argc != 4)
		return 2;
	int threads = atoi(argv[1]);
	CUmemoryPool pool;
	pthread_t thread[64];
	steps = atoi(argv[2]);
	OK(cuInit(0));
	OK(cuDeviceGet(&dev, 0));
	OK(cuDevicePrimaryCtxRetain(&context, dev));
	for (int i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, churn, (void *)(uintptr_t)(strtoull(argv[3], NULL, 0) * 977 + (uint64_t)i + 1));
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	OK(cuCtxSetCurrent(context));
	OK(cuDeviceGetDefaultMemPool(&pool, dev));
	for (int tries = 0; tries < 10 && cuMemPoolTrimTo(pool, 0) != CUDA_SUCCESS; tries++)
		; /* may be the call that is told to fail */
	printf("most %llu refused %llu\n", (unsigned long long)most_seen, (unsigned long long)refused);
	/* A real pool may grow by a step that does not fit; it is booked until it is undone. */
	uint64_t step = getenv("GPULIMIT_TEST_REAL") ? 64 << 20 : 0;
	if (most_seen > books()->device[0].memory_limit_bytes + step)
		FAIL("%llu bytes were booked at once", (unsigned long long)most_seen);
	size_t free, total; /* asking brings the books up to date; a lower figure is believed when seen twice */
	for (int i = 0; i < 3; i++, usleep(2000))
		OK(cuMemGetInfo_v2(&free, &total));
	TRUE_BYTES(getenv("GPULIMIT_TEST_REAL") ? card_used() : 0);
	for (int kind = 0; kind < GL_MEM_OVERHEAD; kind++)
		if (booked_kind(kind))
			FAIL("%llu bytes of kind %d are left", (unsigned long long)booked_kind(kind), kind);
	return failures != 0;
}
