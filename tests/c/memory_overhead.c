/* SPDX-License-Identifier: Apache-2.0
 *
 * What nobody asks for by size (contexts, code, rounding) on a simulated card that has such costs.
 *
 * Usage: memory_overhead CASE.  Exit status 0: all held.
 */
#include "books.h"

enum { MIB = 1 << 20 };
static CUdevice dev;

/* The quota is smaller than a context: refused the first time, when nobody knows, and the second, when one does. */
static void too_small(void)
{
	CUcontext context = NULL;
	REFUSED(cuDevicePrimaryCtxRetain(&context, dev));
	TRUE_BYTES(0);
	REFUSED(cuDevicePrimaryCtxRetain(&context, dev));
	REFUSED(cuCtxCreate_v2(&context, 0, dev));
	TRUE_BYTES(0);
	if (context || account()->contexts || books()->device[0].refused != 3 || !books()->device[0].context_bytes)
		FAIL("contexts %llu, refused %llu, learned %llu", (unsigned long long)account()->contexts,
		     (unsigned long long)books()->device[0].refused, (unsigned long long)books()->device[0].context_bytes);
}

/* Room for one context, not for two. */
static void second_context(void)
{
	CUcontext first, second = NULL;
	CUdeviceptr p;
	OK(cuDevicePrimaryCtxRetain(&first, dev));
	OK(cuCtxSetCurrent(first));
	uint64_t one = card_used();
	TRUE_BYTES(one);
	OK(cuDevicePrimaryCtxRetain(&first, dev)); /* costs nothing more */
	TRUE_BYTES(one);
	REFUSED(cuCtxCreate_v2(&second, 0, dev));
	TRUE_BYTES(one);
	OK(cuMemAlloc_v2(&p, 64 * MIB));
	TRUE_BYTES(one + 64 * MIB);
	OK(cuDevicePrimaryCtxRelease_v2(dev));
	TRUE_BYTES(one + 64 * MIB);
	OK(cuDevicePrimaryCtxRelease_v2(dev));
	TRUE_BYTES(0);
}

/* Pieces that the card rounds up: the quota holds for what the card really gives. */
static void rounding(void)
{
	CUcontext context;
	CUdeviceptr p;
	int count = 0;
	OK(cuDevicePrimaryCtxRetain(&context, dev));
	OK(cuCtxSetCurrent(context));
	while (count < 4000 && cuMemAlloc_v2(&p, MIB + 1) == CUDA_SUCCESS)
		count++;
	uint64_t limit = books()->device[0].memory_limit_bytes, held = card_used();
	if (held > limit || held + 16 * MIB < limit)
		FAIL("after %d pieces the card holds %llu of %llu", count, (unsigned long long)held, (unsigned long long)limit);
}

/* A pool grows by more than was asked for; that too must fit. */
static void pool_step(void)
{
	CUcontext context;
	CUdeviceptr p, fill = 0;
	OK(cuDevicePrimaryCtxRetain(&context, dev));
	OK(cuCtxSetCurrent(context));
	uint64_t limit = books()->device[0].memory_limit_bytes;
	OK(cuMemAlloc_v2(&fill, limit - card_used() - 20 * MIB));
	REFUSED(cuMemAllocAsync(&p, 1000, NULL));
	TRUE_BYTES(limit - 20 * MIB);
	OK(cuMemFree_v2(fill));
	OK(cuMemAllocAsync(&p, 1000, NULL));
	TRUE_BYTES(limit - (limit - card_used()));
	OK(cuMemFreeAsync(p, NULL));
}

/* Managed memory is charged in full and is no part of what NVML shows of a process. */
static void managed(void)
{
	CUcontext context;
	CUdeviceptr p, q;
	OK(cuDevicePrimaryCtxRetain(&context, dev));
	OK(cuCtxSetCurrent(context));
	uint64_t one = booked();
	OK(cuMemAllocManaged(&p, 100 * MIB, 1));
	OK(cuMemsetD8_v2(p, 1, 100 * MIB));
	OK(cuCtxSynchronize());
	OK(cuMemAlloc_v2(&q, 64 * MIB)); /* more than a measurement is put off for */
	usleep(2000);
	OK(cuMemFree_v2(q));
	OK(cuMemAlloc_v2(&q, 64 * MIB));
	BOOKED(one + 164 * MIB);
}

int main(int argc, char **argv)
{
	start_card(argc, argv);
	if (argc != 2)
		return 2;
	OK(cuInit(0));
	OK(cuDeviceGet(&dev, 0));
	const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {{"too_small", too_small}, {"second_context", second_context}, {"rounding", rounding},
		     {"pool_step", pool_step}, {"managed", managed}};
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (!strcmp(argv[1], tests[i].name))
			tests[i].run();
	return failures != 0;
}
