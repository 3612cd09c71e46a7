/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver refuses inside the quota: the books must be as before, outputs untouched, and the driver's code handed on.
 * GPULIMIT_SIM_FAULTS makes the call named by the first argument fail with the second as its code, once.
 *
 * Usage: memory_faults CALL CODE.  Exit status 0: all held.
 */
#include "books.h"

#define SENTINEL 0x5a5a5a5au
enum { MIB = 1 << 20 };

static CUdevice dev;
static CUcontext context;
static CUstream stream;
static CUmemoryPool pool;
static CUdeviceptr range;
static CUmemGenericAllocationHandle handle;
static CUdeviceptr pointer = SENTINEL;
static CUdeviceptr_v1 low = SENTINEL;
static size_t pitch = SENTINEL;
static unsigned int low_pitch = SENTINEL;
static CUarray array = (CUarray)SENTINEL;
static CUmipmappedArray mipmap = (CUmipmappedArray)SENTINEL;
static CUmemGenericAllocationHandle made = SENTINEL;
static CUcontext other = (CUcontext)SENTINEL;
static CUgraph graph;
static CUgraphNode node;
static CUDA_MEM_ALLOC_NODE_PARAMS node_params;
static const CUDA_ARRAY_DESCRIPTOR flat = {1024, 1024, CU_AD_FORMAT_FLOAT, 1};
static const CUDA_ARRAY3D_DESCRIPTOR deep = {64, 64, 64, CU_AD_FORMAT_FLOAT, 1, 0};

static CUresult plain(void) { return cuMemAlloc_v2(&pointer, MIB); }
static CUresult old(void) { return cuMemAlloc(&low, MIB); }
static CUresult pitched(void) { return cuMemAllocPitch_v2(&pointer, &pitch, 1000, 100, 4); }
static CUresult old_pitched(void) { return cuMemAllocPitch(&low, &low_pitch, 1000, 100, 4); }
static CUresult managed(void) { return cuMemAllocManaged(&pointer, MIB, 1); }
static CUresult flat_array(void) { return cuArrayCreate_v2(&array, &flat); }
static CUresult deep_array(void) { return cuArray3DCreate_v2(&array, &deep); }
static CUresult mipmapped(void) { return cuMipmappedArrayCreate(&mipmap, &deep, 3); }
static CUresult async(void) { return cuMemAllocAsync(&pointer, MIB, stream); }
static CUresult async_twin(void) { return cuMemAllocAsync_ptsz(&pointer, MIB, stream); }
static CUresult from_pool(void) { return cuMemAllocFromPoolAsync(&pointer, MIB, pool, stream); }
static CUresult create(void) { return cuMemCreate(&made, 2 * MIB, &(CUmemAllocationProp){.type = 1, .location = {1, dev}}, 0); }
static CUresult map(void) { return cuMemMap(range, 2 * MIB, 0, handle, 0); }
static CUresult new_context(void) { return cuCtxCreate_v2(&other, 0, dev); }
static CUresult alloc_node(void) { return cuGraphAddMemAllocNode(&node, graph, NULL, 0, &node_params); }
static CUresult release(void) { return cuMemRelease(handle); }
static CUresult release_primary(void) { return cuDevicePrimaryCtxRelease_v2(dev); }
static CUresult retain_primary(void) { return cuDevicePrimaryCtxRetain(&other, dev); }

static CUresult free_plain(void)
{
	CUdeviceptr p;
	OK(cuMemAlloc_v2(&p, 3 * MIB));
	CUresult r = cuMemFree_v2(p);
	BOOKED(r == CUDA_SUCCESS ? 2 * MIB : 5 * MIB);
	if (r != CUDA_SUCCESS)
		OK(cuMemFree_v2(p));
	return r;
}

static CUresult free_async(void)
{
	CUdeviceptr p;
	CUmemoryPool own;
	OK(cuMemAllocAsync(&p, 3 * MIB, stream));
	CUresult r = cuMemFreeAsync(p, stream);
	if (r != CUDA_SUCCESS) {
		BOOKED(5 * MIB);
		OK(cuMemFreeAsync(p, stream));
	}
	OK(cuStreamSynchronize(stream));
	OK(cuDeviceGetDefaultMemPool(&own, dev));
	OK(cuMemPoolTrimTo(own, 0)); /* what the driver gave back by itself is seen at the next call */
	return r;
}

static CUresult destroy_array(void)
{
	CUarray a;
	OK(cuArrayCreate_v2(&a, &flat));
	CUresult r = cuArrayDestroy(a);
	BOOKED(r == CUDA_SUCCESS ? 2 * MIB : 6 * MIB);
	if (r != CUDA_SUCCESS)
		OK(cuArrayDestroy(a));
	return r;
}

static CUresult unmap(void)
{
	OK(cuMemMap(range, 2 * MIB, 0, handle, 0));
	CUresult r = cuMemUnmap(range, 2 * MIB);
	if (r != CUDA_SUCCESS)
		OK(cuMemUnmap(range, 2 * MIB));
	return r;
}

static CUresult destroy_context(void)
{
	CUcontext c, popped;
	CUdeviceptr p;
	OK(cuCtxCreate_v2(&c, 0, dev));
	OK(cuMemAlloc_v2(&p, MIB));
	CUresult r = cuCtxDestroy_v2(c);
	BOOKED(r == CUDA_SUCCESS ? 2 * MIB : 3 * MIB);
	if (r != CUDA_SUCCESS) {
		OK(cuCtxPopCurrent_v2(&popped));
		OK(cuCtxDestroy_v2(c));
	}
	OK(cuCtxSetCurrent(context));
	return r;
}

static const struct call {
	const char *name;
	CUresult (*run)(void);
	bool allocates;
} calls[] = {
	{"cuMemAlloc_v2", plain, true}, {"cuMemAlloc", old, true}, {"cuMemAllocPitch_v2", pitched, true},
	{"cuMemAllocPitch", old_pitched, true}, {"cuMemAllocManaged", managed, true}, {"cuArrayCreate_v2", flat_array, true},
	{"cuArray3DCreate_v2", deep_array, true}, {"cuMipmappedArrayCreate", mipmapped, true}, {"cuMemAllocAsync", async, true},
	{"cuMemAllocAsync_ptsz", async_twin, true}, {"cuMemAllocFromPoolAsync", from_pool, true}, {"cuMemCreate", create, true},
	{"cuMemMap", map, false}, {"cuCtxCreate_v2", new_context, true}, {"cuGraphAddMemAllocNode", alloc_node, false},
	{"cuMemRelease", release, false}, {"cuMemFree_v2", free_plain, false}, {"cuMemFreeAsync", free_async, false},
	{"cuArrayDestroy", destroy_array, false}, {"cuMemUnmap", unmap, false}, {"cuCtxDestroy_v2", destroy_context, false},
	{"cuDevicePrimaryCtxRelease_v2", release_primary, false}, {"cuDevicePrimaryCtxRetain", retain_primary, false},
};

static void set_up(const char *name)
{
	CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}};
	static CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
	OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
	OK(cuMemAddressReserve(&range, 2 * MIB, 0, 0, 0));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemPoolCreate(&pool, &(CUmemPoolProps){.allocType = 1, .location = prop.location}));
	node_params = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = {.allocType = 1, .location = prop.location},
						   .accessDescs = &access, .accessDescCount = 1, .bytesize = MIB};
	if (!strcmp(name, "cuGraphAddMemAllocNode"))
		OK(cuGraphCreate(&graph, 0));
}

int main(int argc, char **argv)
{
	start_card(argc, argv);
	if (argc != 3)
		return 2;
	CUresult code = atoi(argv[2]);
	OK(cuInit(0));
	OK(cuDeviceGet(&dev, 0));
	if (strcmp(argv[1], "cuDevicePrimaryCtxRetain")) {
		OK(cuDevicePrimaryCtxRetain(&context, dev));
		OK(cuCtxSetCurrent(context));
	}
	if (!context) {
		EXPECT(code, retain_primary());
		if (other != (CUcontext)SENTINEL || account()->contexts)
			FAIL("a failed retain left something behind");
		OK(retain_primary());
		return failures != 0;
	}
	if (strcmp(argv[1], "cuMemCreate"))
		set_up(argv[1]);
	uint64_t before = booked(), contexts = account()->contexts;
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		if (strcmp(argv[1], calls[i].name))
			continue;
		EXPECT(code, calls[i].run());
		TRUE_BYTES(before);
		if (pointer != SENTINEL || low != SENTINEL || pitch != SENTINEL || array != (CUarray)SENTINEL ||
		    mipmap != (CUmipmappedArray)SENTINEL || made != SENTINEL || other != (CUcontext)SENTINEL)
			FAIL("an output was written");
		if (account()->contexts != contexts)
			FAIL("%llu contexts counted", (unsigned long long)account()->contexts);
		if (calls[i].allocates && books()->device[0].refused_by_card != (code == CUDA_ERROR_OUT_OF_MEMORY))
			FAIL("%llu refusals by the card", (unsigned long long)books()->device[0].refused_by_card);
		OK(calls[i].run());
		return failures != 0;
	}
	return 2;
}
