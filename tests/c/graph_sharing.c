/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs with allocation nodes share one pool of the driver's: they are charged what it holds, not the sum of what each
 * would need alone.  For a quota of 200 MiB on a card that counts to the byte.
 *
 * Usage: graph_sharing own_free | large | kept | trimmed | again | upload.  Exit status 0: all held.
 */
#include "books.h"

enum { MIB = 1 << 20, GRAPHS = 8, SIZE = 64 * MIB };

static CUstream stream;
static CUgraph graph[GRAPHS];
static CUgraphExec exec[GRAPHS];
static CUdeviceptr pointer[GRAPHS];

static void make_of(int i, size_t size, bool frees, unsigned long long flags)
{
	static CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
					     .accessDescs = &access, .accessDescCount = 1, .bytesize = size};
	CUgraphNode alloc, drop;
	OK(cuGraphCreate(&graph[i], 0));
	OK(cuGraphAddMemAllocNode(&alloc, graph[i], NULL, 0, &params));
	pointer[i] = params.dptr;
	if (frees)
		OK(cuGraphAddMemFreeNode(&drop, graph[i], &alloc, 1, params.dptr));
	OK(cuGraphInstantiateWithFlags(&exec[i], graph[i], flags));
}

static void make(int i, bool frees, unsigned long long flags)
{
	make_of(i, SIZE, frees, flags);
}

/* Graphs that free what they allocate: any number of them has room for one. */
static void own_free(void)
{
	for (int i = 0; i < GRAPHS; i++) {
		make(i, true, 0);
		OK(cuGraphLaunch(exec[i], stream));
		TRUE_BYTES(SIZE);
	}
	for (int i = 0; i < GRAPHS; i++)
		OK(cuGraphLaunch(exec[i], stream));
	TRUE_BYTES(SIZE);
	OK(cuDeviceGraphMemTrim(0));
	TRUE_BYTES(0);
}

/* The same where two of them together would not fit. */
static void large(void)
{
	for (int i = 0; i < GRAPHS; i++) {
		make_of(i, 2 * SIZE, true, 0);
		OK(cuGraphLaunch(exec[i], stream));
		TRUE_BYTES(2 * SIZE);
	}
	for (int i = 0; i < GRAPHS; i++)
		OK(cuGraphLaunch(exec[i], stream));
	TRUE_BYTES(2 * SIZE);
}

/* Graphs that leave it: the launch that would pass the quota is refused, and no sooner. */
static void kept(void)
{
	for (int i = 0; i < 4; i++) {
		make(i, false, 0);
		EXPECT(i < 3 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, cuGraphLaunch(exec[i], stream));
	}
	if (booked() < 3 * SIZE || booked() > 4 * SIZE || card_used() != 3 * SIZE)
		FAIL("%llu booked, the card holds %llu", (unsigned long long)booked(), (unsigned long long)card_used());
	OK(cuMemFree_v2(pointer[0]));
	OK(cuGraphLaunch(exec[3], stream));
	TRUE_BYTES(3 * SIZE);
}

/* What is freed and trimmed is not charged, although the graphs live. */
static void trimmed(void)
{
	CUdeviceptr plain;
	for (int i = 0; i < 3; i++) {
		make(i, false, 0);
		OK(cuGraphLaunch(exec[i], stream));
	}
	for (int i = 0; i < 3; i++)
		OK(i % 2 ? cuMemFreeAsync(pointer[i], stream) : cuMemFree_v2(pointer[i]));
	OK(cuDeviceGraphMemTrim(0));
	TRUE_BYTES(0);
	OK(cuMemAlloc_v2(&plain, 150 * MIB));
	REFUSED(cuGraphLaunch(exec[0], stream));
	TRUE_BYTES(150 * MIB);
	OK(cuMemFree_v2(plain));
	OK(cuGraphLaunch(exec[0], stream));
	TRUE_BYTES(SIZE);
}

/* A graph that frees at its next launch what the last one left needs no second room. */
static void again(void)
{
	CUdeviceptr plain;
	make(0, false, 1);
	OK(cuGraphLaunch(exec[0], stream));
	OK(cuMemAlloc_v2(&plain, 200 * MIB - SIZE));
	for (int i = 0; i < 3; i++)
		OK(cuGraphLaunch(exec[0], stream));
	TRUE_BYTES(200 * MIB);
	OK(cuGraphExecDestroy(exec[0]));
	OK(cuGraphDestroy(graph[0]));
	TRUE_BYTES(200 * MIB);
}

static void upload(void)
{
	CUdeviceptr plain;
	make(0, true, 0);
	OK(cuMemAlloc_v2(&plain, 200 * MIB - SIZE));
	OK(cuGraphUpload(exec[0], stream));
	OK(cuGraphLaunch(exec[0], stream));
	TRUE_BYTES(200 * MIB);
	make(1, true, 0);
	OK(cuGraphUpload(exec[1], stream));
	OK(cuGraphLaunch(exec[1], stream));
	TRUE_BYTES(200 * MIB);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {{"own_free", own_free}, {"large", large}, {"kept", kept}, {"trimmed", trimmed}, {"again", again}, {"upload", upload}};

int main(int argc, char **argv)
{
	CUcontext context;
	start_card(argc, argv);
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return failures != 0;
		}
	return 2;
}
