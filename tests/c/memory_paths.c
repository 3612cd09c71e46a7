/* SPDX-License-Identifier: Apache-2.0
 *
 * Every way to take device memory, at the edge of the quota, on a simulated card that counts to the byte.  After each
 * step the tenant's books, the card's own figure and what the step should have taken must be the same.
 *
 * Usage: memory_paths CASE.  Needs GPULIMIT_MEMORY=64MiB.  Exit status 0: all held; else a line for each difference.
 */
#include "books.h"

enum { QUOTA = 64 << 20, MIB = 1 << 20 };
#define LEFT(bytes) ((size_t)QUOTA - (size_t)(bytes))
#define SENTINEL 0x5a5a5a5au

static CUdevice dev;
static CUcontext primary;

static CUmemLocation here(void)
{
	return (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, dev};
}

static void plain(void)
{
	CUdeviceptr a, b = SENTINEL;
	OK(cuMemAlloc_v2(&a, LEFT(1000)));
	TRUE_BYTES(LEFT(1000));
	REFUSED(cuMemAlloc_v2(&b, 1001));
	if (b != SENTINEL)
		FAIL("an output was written on refusal");
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&b, 0));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(NULL, 1));
	REFUSED(cuMemAlloc_v2(&b, SIZE_MAX));
	REFUSED(cuMemAlloc_v2(&b, SIZE_MAX / 2 + 2));
	TRUE_BYTES(LEFT(1000));
	OK(cuMemAlloc_v2(&b, 1000));
	TRUE_BYTES(QUOTA);
	OK(cuMemFree_v2(a));
	TRUE_BYTES(1000);
	if (cuMemFree_v2(a) == CUDA_SUCCESS || cuMemFree_v2(0x123456) == CUDA_SUCCESS)
		FAIL("a pointer that is none was freed");
	TRUE_BYTES(1000);
	OK(cuMemFree_v2(b));
	if (books()->device[0].refused != 3)
		FAIL("%llu refusals counted", (unsigned long long)books()->device[0].refused);
}

static void old(void)
{
	CUdeviceptr_v1 a, b = SENTINEL;
	unsigned int pitch;
	OK(cuMemAlloc(&a, LEFT(4096)));
	TRUE_BYTES(LEFT(4096));
	REFUSED(cuMemAlloc(&b, 4097));
	REFUSED(cuMemAllocPitch(&b, &pitch, 100, 9, 4));
	if (b != SENTINEL)
		FAIL("an output was written on refusal");
	OK(cuMemAllocPitch(&b, &pitch, 100, 8, 4));
	TRUE_BYTES(LEFT(4096) + (uint64_t)pitch * 8);
	OK(cuMemFree(a));
	OK(cuMemFree(b));
	CUarray array, other = (CUarray)SENTINEL;
	CUDA_ARRAY_DESCRIPTOR_v1 flat = {1 << 20, 8, CU_AD_FORMAT_FLOAT, 1};
	CUDA_ARRAY3D_DESCRIPTOR_v1 deep = {256, 256, 128, CU_AD_FORMAT_HALF, 4, 0};
	OK(cuArrayCreate(&array, &flat));
	BOOKED(32 * MIB);
	REFUSED(cuArray3DCreate(&other, &deep));
	OK(cuArrayDestroy(array));
	OK(cuArray3DCreate(&array, &deep));
	BOOKED(64 * MIB);
	OK(cuArrayDestroy(array));
}

static void pitched(void)
{
	CUdeviceptr a, b = SENTINEL;
	size_t pitch = SENTINEL;
	OK(cuMemAllocPitch_v2(&a, &pitch, 1000, QUOTA / 1024 - 1, 4));
	TRUE_BYTES(pitch * (QUOTA / 1024 - 1));
	pitch = SENTINEL;
	REFUSED(cuMemAllocPitch_v2(&b, &pitch, 513, 2, 4));
	REFUSED(cuMemAllocPitch_v2(&b, &pitch, SIZE_MAX, SIZE_MAX, 4));
	REFUSED(cuMemAllocPitch_v2(&b, &pitch, SIZE_MAX / 8, 16, 4));
	if (b != SENTINEL || pitch != SENTINEL)
		FAIL("an output was written on refusal");
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&b, &pitch, 0, 1, 4));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&b, &pitch, 10, 1, 3));
	OK(cuMemAllocPitch_v2(&b, &pitch, 513, 1, 4));
	TRUE_BYTES(QUOTA);
	OK(cuMemFree_v2(b));
	OK(cuMemFree_v2(a));
}

/* Charged in full, wherever it is. */
static void managed(void)
{
	CUdeviceptr a, b = SENTINEL;
	OK(cuMemAllocManaged(&a, LEFT(10), 1));
	BOOKED(LEFT(10));
	if (booked_kind(GL_MEM_MANAGED) != LEFT(10))
		FAIL("not booked as managed");
	REFUSED(cuMemAllocManaged(&b, 11, 1));
	REFUSED(cuMemAlloc_v2(&b, 11));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&b, 1, 9));
	OK(cuMemFreeAsync(a, NULL));
	OK(cuStreamSynchronize(NULL));
	BOOKED(0);
}

static void arrays(void)
{
	CUarray array, other = (CUarray)SENTINEL;
	CUmipmappedArray mipmap;
	CUDA_ARRAY_DESCRIPTOR flat = {4096, 4096, CU_AD_FORMAT_UNSIGNED_INT8, 4};
	CUDA_ARRAY3D_DESCRIPTOR deep = {1, 1, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
	OK(cuArrayCreate_v2(&array, &flat));
	TRUE_BYTES(QUOTA);
	REFUSED(cuArray3DCreate_v2(&other, &deep));
	if (other != (CUarray)SENTINEL)
		FAIL("an output was written on refusal");
	OK(cuArrayDestroy(array));
	deep = (CUDA_ARRAY3D_DESCRIPTOR){64, 64, 64, CU_AD_FORMAT_FLOAT, 2, 0};
	OK(cuArray3DCreate_v2(&array, &deep));
	TRUE_BYTES(64 * 64 * 64 * 8);
	OK(cuArrayDestroy(array));
	deep = (CUDA_ARRAY3D_DESCRIPTOR){64, 64, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP};
	OK(cuMipmappedArrayCreate(&mipmap, &deep, 3));
	TRUE_BYTES((64 * 64 + 32 * 32 + 16 * 16) * 6 * 4);
	OK(cuMipmappedArrayDestroy(mipmap));
	deep = (CUDA_ARRAY3D_DESCRIPTOR){256, 128, 4, CU_AD_FORMAT_HALF, 1, 0};
	OK(cuMipmappedArrayCreate(&mipmap, &deep, 4));
	TRUE_BYTES((256 * 128 * 4 + 128 * 64 * 2 + 64 * 32 * 1 + 32 * 16 * 1) * 2);
	OK(cuMipmappedArrayDestroy(mipmap));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayCreate_v2(&array, NULL));
}

static uint64_t pool_says(CUmemoryPool pool, CUmemPool_attribute what)
{
	cuuint64_t value = 0;
	OK(cuMemPoolGetAttribute(pool, what, &value));
	return value;
}

/* The default pool, and every way of freeing from it. */
static void async(void)
{
	CUstream stream;
	CUdeviceptr a, b = SENTINEL, c;
	CUmemoryPool pool;
	cuuint64_t keep = UINT64_MAX;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuDeviceGetDefaultMemPool(&pool, dev));
	OK(cuMemAllocAsync(&a, LEFT(100), stream));
	TRUE_BYTES(LEFT(100));
	REFUSED(cuMemAllocAsync(&b, 101, stream));
	REFUSED(cuMemAllocAsync_ptsz(&b, 101, stream));
	REFUSED(cuMemAllocAsync(&b, SIZE_MAX, stream));
	REFUSED(cuMemAlloc_v2(&b, 101));
	if (b != SENTINEL)
		FAIL("an output was written on refusal");
	OK(cuMemAllocAsync(&b, 100, stream));
	OK(cuMemFree_v2(b));
	OK(cuMemFreeAsync_ptsz(a, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemPoolTrimTo(pool, 0));
	TRUE_BYTES(0);

	/* A pool that keeps its memory is charged for it, and lends it to itself for nothing. */
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	for (int i = 0; i < 200; i++) {
		OK(cuMemAllocAsync(&a, 40 * MIB - (size_t)i * 1000, stream));
		OK(cuMemFreeAsync(a, stream));
		OK(cuStreamSynchronize(stream));
	}
	TRUE_BYTES(pool_says(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
	if (booked() < 30 * MIB || booked() > QUOTA)
		FAIL("the pool does not keep its memory: %llu", (unsigned long long)booked());
	/* Others get what it does not use. */
	OK(cuMemAlloc_v2(&c, 60 * MIB));
	TRUE_BYTES(60 * MIB);
	OK(cuMemFree_v2(c));
	/* A plain pointer may be freed in stream order. */
	OK(cuMemAlloc_v2(&c, 50 * MIB));
	OK(cuMemFreeAsync(c, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemPoolTrimTo(pool, 0));
	TRUE_BYTES(0);
	OK(cuStreamDestroy_v2(stream));
}

static void pools(void)
{
	CUmemoryPool pool, again;
	CUstream stream;
	CUdeviceptr a, b = SENTINEL;
	CUmemPoolProps props = {.allocType = 1, .location = here()};
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&a, LEFT(7), pool, stream));
	TRUE_BYTES(LEFT(7));
	REFUSED(cuMemAllocFromPoolAsync(&b, 8, pool, stream));
	REFUSED(cuMemAllocFromPoolAsync_ptsz(&b, 8, pool, stream));
	if (b != SENTINEL)
		FAIL("an output was written on refusal");
	/* A pool that is destroyed lives on in its pointers. */
	OK(cuMemPoolDestroy(pool));
	TRUE_BYTES(LEFT(7));
	OK(cuMemPoolCreate(&again, &props));
	REFUSED(cuMemAllocFromPoolAsync(&b, 8, again, stream));
	OK(cuMemFreeAsync(a, stream));
	OK(cuStreamSynchronize(stream));
	TRUE_BYTES(0);
	OK(cuMemAllocFromPoolAsync(&b, 8, again, stream));
	TRUE_BYTES(8);
	OK(cuMemFreeAsync(b, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemPoolDestroy(again));
	TRUE_BYTES(0);
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(NULL, &props));
	props.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
	if (cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS) {
		OK(cuMemAllocFromPoolAsync(&a, 2 * (size_t)QUOTA, pool, stream));
		BOOKED(0);
		OK(cuMemFreeAsync(a, stream));
		OK(cuStreamSynchronize(stream));
		OK(cuMemPoolDestroy(pool));
	}
	OK(cuStreamDestroy_v2(stream));
}

static void vmm(void)
{
	enum { PIECE = 2 * MIB, SIZE = 32 * MIB };
	CUmemGenericAllocationHandle a, b = SENTINEL, again;
	CUmemAllocationProp prop = {.type = 1, .location = here()};
	CUdeviceptr at;
	OK(cuMemAddressReserve(&at, 4 * SIZE, 0, 0, 0));
	OK(cuMemCreate(&a, SIZE, &prop, 0));
	TRUE_BYTES(SIZE);
	REFUSED(cuMemCreate(&b, SIZE + PIECE, &prop, 0));
	if (b != SENTINEL)
		FAIL("an output was written on refusal");
	/* Released twice, mapped in between: charged once, until the last reference. */
	OK(cuMemMap(at, SIZE, 0, a, 0));
	OK(cuMemRelease(a));
	TRUE_BYTES(SIZE);
	OK(cuMemCreate(&b, SIZE, &prop, 0));
	TRUE_BYTES(2 * SIZE);
	OK(cuMemMap(at + SIZE, SIZE, 0, b, 0));
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 4096)));
	OK(cuMemUnmap(at, SIZE));
	TRUE_BYTES(2 * SIZE);
	OK(cuMemRelease(again));
	TRUE_BYTES(SIZE);
	/* The handle that already exists is given again. */
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + SIZE)));
	OK(cuMemRelease(b));
	TRUE_BYTES(SIZE);
	OK(cuMemRelease(again));
	TRUE_BYTES(SIZE);
	OK(cuMemUnmap(at + SIZE, SIZE));
	TRUE_BYTES(0);
	/* Several mappings undone at once. */
	OK(cuMemCreate(&a, PIECE, &prop, 0));
	OK(cuMemCreate(&b, PIECE, &prop, 0));
	OK(cuMemMap(at, PIECE, 0, a, 0));
	OK(cuMemMap(at + PIECE, PIECE, 0, b, 0));
	OK(cuMemRelease(a));
	OK(cuMemRelease(b));
	TRUE_BYTES(2 * PIECE);
	OK(cuMemUnmap(at, 2 * PIECE));
	TRUE_BYTES(0);
	if (cuMemRelease(a) == CUDA_SUCCESS || cuMemMap(at, PIECE, 0, 0x7777, 0) == CUDA_SUCCESS)
		FAIL("a handle that is none was taken");
	/* Host memory is none of the card's. */
	for (int type = CU_MEM_LOCATION_TYPE_HOST; type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT; type++) {
		prop.location = (CUmemLocation){type, 0};
		if (cuMemCreate(&a, 2 * (size_t)QUOTA, &prop, 0) == CUDA_SUCCESS) {
			BOOKED(0);
			OK(cuMemRelease(a));
		}
	}
	OK(cuMemAddressFree(at, 4 * SIZE));
	BOOKED(0);
}

static CUDA_MEM_ALLOC_NODE_PARAMS node_of(size_t bytes)
{
	static CUmemAccessDesc access;
	access = (CUmemAccessDesc){here(), 3};
	return (CUDA_MEM_ALLOC_NODE_PARAMS){
		.poolProps = {.allocType = 1, .location = here()}, .accessDescs = &access, .accessDescCount = 1, .bytesize = bytes};
}

static void graphs(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode alloc, drop;
	CUstream stream;
	CUDA_MEM_ALLOC_NODE_PARAMS params = node_of(40 * MIB);
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
	BOOKED(40 * MIB);
	OK(cuGraphAddMemFreeNode(&drop, graph, &alloc, 1, params.dptr));
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = node_of(50 * MIB)};
	OK(cuGraphAddNode(&alloc, graph, &drop, 1, &any));
	BOOKED(50 * MIB);
	CUgraphNodeParams more = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = node_of(14 * MIB + 1)};
	REFUSED(cuGraphAddNode(&alloc, graph, &alloc, 1, &more));
	BOOKED(50 * MIB);
	CUgraphNodeParams undo = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {any.alloc.dptr}};
	OK(cuGraphAddNode(&drop, graph, &alloc, 1, &undo));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphDestroy(graph));
	BOOKED(50 * MIB);
	for (int i = 0; i < 10; i++)
		OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
	if (booked() < card_used() || booked() > 50 * MIB)
		FAIL("%llu booked, the card holds %llu", (unsigned long long)booked(), (unsigned long long)card_used());
	OK(cuGraphExecDestroy(exec));
	OK(cuDeviceGraphMemTrim(dev));
	TRUE_BYTES(0);
	OK(cuStreamDestroy_v2(stream));
}

static void capture(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUstream stream;
	CUdeviceptr a, b = SENTINEL, plain;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc_v2(&plain, MIB));
	for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
		OK(cuStreamBeginCapture_v2(stream, mode));
		OK(cuMemAllocAsync(&a, 60 * MIB, stream));
		BOOKED(61 * MIB);
		REFUSED(cuMemAllocAsync(&b, 4 * MIB, stream));
		if (b != SENTINEL)
			FAIL("an output was written on refusal");
		OK(cuMemFreeAsync(a, stream));
		OK(cuStreamEndCapture(stream, &graph));
		BOOKED(61 * MIB);
		OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
		OK(cuGraphLaunch(exec, stream));
		OK(cuStreamSynchronize(stream));
		OK(cuGraphExecDestroy(exec));
		OK(cuGraphDestroy(graph));
		OK(cuDeviceGraphMemTrim(dev));
		TRUE_BYTES(MIB);
	}
	/* A capture that fails leaves nothing on the books. */
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemAllocAsync(&a, 60 * MIB, stream));
	if (cuMemFree_v2(plain) == CUDA_SUCCESS)
		FAIL("a plain free went through while a stream was captured");
	BOOKED(61 * MIB);
	if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS)
		FAIL("the capture was not spoilt");
	TRUE_BYTES(MIB);
	OK(cuMemFree_v2(plain));
	TRUE_BYTES(0);
	OK(cuStreamDestroy_v2(stream));
}

/* What dies with a context, and what does not. */
static void contexts(void)
{
	CUcontext second, third;
	CUdeviceptr a, b, c;
	CUarray array;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {.type = 1, .location = here()};
	CUDA_ARRAY_DESCRIPTOR flat = {1024, 1024, CU_AD_FORMAT_UNSIGNED_INT8, 1};
	uint64_t before = account()->contexts;
	OK(cuCtxCreate_v2(&second, 0, dev));
	OK(cuMemAlloc_v2(&a, 3 * MIB));
	OK(cuArrayCreate_v2(&array, &flat));
	OK(cuMemAllocManaged(&b, 5 * MIB, 1));
	OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
	BOOKED(11 * MIB);
	OK(cuCtxDestroy_v2(second));
	TRUE_BYTES(2 * MIB);
	OK(cuMemRelease(handle));
	TRUE_BYTES(0);
	OK(cuCtxSetCurrent(primary));
	OK(cuMemAlloc_v2(&c, MIB));
	OK(cuCtxCreate_v2(&third, 0, dev));
	OK(cuMemAlloc_v2(&a, 7 * MIB));
	OK(cuCtxSetCurrent(primary));
	OK(cuDevicePrimaryCtxReset_v2(dev));
	TRUE_BYTES(7 * MIB);
	OK(cuCtxDestroy_v2(third));
	TRUE_BYTES(0);
	OK(cuDevicePrimaryCtxRetain(&primary, dev));
	OK(cuCtxSetCurrent(primary));
	if (account()->contexts != before)
		FAIL("%llu contexts counted, not %llu", (unsigned long long)account()->contexts, (unsigned long long)before);
}

/* Under green contexts memory belongs to the primary one. */
static void green(void)
{
	char whole[256] = {0}, part[256] = {0};
	unsigned int parts = 1;
	CUdevResourceDesc desc;
	CUgreenCtx green;
	CUcontext inside, popped;
	CUdeviceptr a;
	if (cuDeviceGetDevResource(dev, whole, 1) != CUDA_SUCCESS ||
	    cuDevSmResourceSplitByCount(part, &parts, whole, NULL, 0, 8) != CUDA_SUCCESS) {
		puts("this driver does not split a device");
		return;
	}
	OK(cuDevResourceGenerateDesc(&desc, part, 1));
	OK(cuGreenCtxCreate(&green, desc, dev, 1));
	OK(cuCtxFromGreenCtx(&inside, green));
	OK(cuCtxPushCurrent_v2(inside));
	OK(cuMemAlloc_v2(&a, 6 * MIB));
	OK(cuCtxPopCurrent_v2(&popped));
	OK(cuGreenCtxDestroy(green));
	BOOKED(6 * MIB);
	OK(cuMemFree_v2(a));
	TRUE_BYTES(0);
}

static void no_context(void)
{
	CUdeviceptr a;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {.type = 1, .location = here()};
	OK(cuCtxSetCurrent(NULL));
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&a, 1));
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAllocManaged(&a, 1, 1));
	if (cuMemAllocAsync(&a, 1, NULL) == CUDA_SUCCESS)
		FAIL("memory without a context");
	OK(cuMemCreate(&handle, 4 * MIB, &prop, 0));
	TRUE_BYTES(4 * MIB);
	REFUSED(cuMemCreate(&handle, 62 * MIB, &prop, 0));
	OK(cuMemRelease(handle));
	OK(cuCtxSetCurrent(primary));
	TRUE_BYTES(0);
}

/* A child has nothing of its parent's, and ends without harm to it. */
static void forked(void)
{
	CUdeviceptr a;
	OK(cuMemAlloc_v2(&a, 10 * MIB));
	for (int i = 0; i < 5; i++) {
		pid_t child = fork();
		int status = 0;
		if (child == 0)
			_exit(cuMemFree_v2(a) == CUDA_SUCCESS); /* the driver does not work after fork */
		waitpid(child, &status, 0);
		if (status != 0)
			FAIL("a child freed its parent's memory: %d", status);
	}
	TRUE_BYTES(10 * MIB);
	OK(cuMemFree_v2(a));
	TRUE_BYTES(0);
}

struct test {
	const char *name;
	void (*run)(void);
};
static const struct test tests[] = {
	{"plain", plain}, {"old", old}, {"pitched", pitched}, {"managed", managed}, {"arrays", arrays},
	{"async", async}, {"pools", pools}, {"vmm", vmm}, {"graphs", graphs}, {"capture", capture},
	{"contexts", contexts}, {"green", green}, {"no_context", no_context}, {"forked", forked},
};

int main(int argc, char **argv)
{
	start_card(argc, argv);
	OK(cuInit(0));
	OK(cuDeviceGet(&dev, 0));
	OK(cuDevicePrimaryCtxRetain(&primary, dev));
	OK(cuCtxSetCurrent(primary));
	TRUE_BYTES(0);
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (argc > 1 && !strcmp(argv[1], tests[i].name))
			tests[i].run();
	BOOKED(0);
	return failures != 0;
}
