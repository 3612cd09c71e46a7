/* SPDX-License-Identifier: Apache-2.0
 *
 * A kernel that waits for a flag spins until something sets it, whatever that is, in whichever stream, on
 * whichever card; it gives up when it was told to; and meanwhile it keeps nobody else waiting.
 * Needs two cards.
 */
#include "driver.h"

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags);
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, uint32_t value, unsigned int flags);
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags);
CUresult cuCtxRecordEvent(CUcontext ctx, CUevent event);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream);

static const char waiting_ptx[] =
	".version 6.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n"
	".visible .entry gpulimit_await(.param .u64 flag, .param .u64 value, .param .u64 ns, .param .u64 bails) { ret; }\n"
	".visible .entry gpulimit_set(.param .u64 flag, .param .u64 value) { ret; }\n";
enum { GEQ, EQ, AND, NOR };
static CUfunction spin_kernel, await_kernel, set_kernel;
static CUstream waiter, setter;
static CUdeviceptr flag, bails;

static void await(CUstream stream, CUdeviceptr at, uint64_t value, uint64_t limit_ns)
{
	void *params[] = { &at, &value, &limit_ns, &bails };
	OK(cuLaunchKernel(await_kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static void set(CUfunction f, CUstream stream, CUdeviceptr at, uint64_t value)
{
	void *params[] = { &at, &value };
	OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static uint64_t word(CUdeviceptr at)
{
	uint64_t value = 77;
	OK(cuMemcpyDtoH_v2(&value, at, 8));
	return value;
}

/* What sets the flag comes 20 ms of other work later, and is not seen before. */
static void sets_it(const char *what, void (*how)(uint64_t value), uint64_t value)
{
	double begin = now_ms();
	await(waiter, flag, value, 0);
	OK(spin(spin_kernel, setter, 20000000, 0));
	how(value);
	bool waits = cuStreamQuery(waiter) == CUDA_ERROR_NOT_READY;
	if (!waits && now_ms() - begin < 20) /* else this host was slow */
		FAIL("%s: the kernel did not wait", what);
	OK(cuStreamSynchronize(waiter));
	double took = now_ms() - begin;
	if (took < 19.9 || took > 200)
		FAIL("%s: the kernel waited for %g ms", what, took);
	OK(cuStreamSynchronize(setter));
	if (word(flag) != value)
		FAIL("%s: the flag is %llu", what, (unsigned long long)word(flag));
}

static void by_kernel(uint64_t value) { set(set_kernel, setter, flag, value); }
static void by_write(uint64_t value) { OK(cuStreamWriteValue64_v2(setter, flag, value, 0)); }
static void by_half(uint64_t value) { OK(cuStreamWriteValue32_v2(setter, flag, (uint32_t)value, 0)); }
static void by_memset(uint64_t value) { OK(cuMemsetD8Async(flag, (unsigned char)value, 1, setter)); }

static void by_copy(uint64_t value)
{
	static uint64_t host[4];
	host[1] = value;
	OK(cuMemcpyHtoDAsync_v2(flag - 8, host, sizeof(host), setter));
}

static void by_copy_on_the_card(uint64_t value)
{
	CUdeviceptr other;
	OK(cuMemAlloc_v2(&other, 4096));
	OK(cuMemcpyHtoD_v2(other, &value, 8));
	OK(cuMemcpyDtoDAsync_v2(flag, other, 8, setter));
}

static void by_graph(uint64_t value)
{
	CUgraph graph;
	CUgraphExec exec;
	OK(cuStreamBeginCapture_v2(setter, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(spin(spin_kernel, setter, 1000, 0));
	set(set_kernel, setter, flag, value);
	OK(cuStreamEndCapture(setter, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphLaunch(exec, setter));
}

static void by_legacy_stream(uint64_t value)
{
	OK(spin(spin_kernel, NULL, 20000000, 0)); /* does not wait for streams that were made not to wait for it */
	OK(cuMemsetD8_v2(flag, (unsigned char)value, 1));
}

static void by_another_card(uint64_t value)
{
	CUcontext here, there;
	CUmodule module;
	CUfunction other_set, other_spin;
	OK(cuCtxGetCurrent(&here));
	OK(cuDevicePrimaryCtxRetain(&there, 1));
	OK(cuCtxSetCurrent(there));
	OK(cuModuleLoadData(&module, waiting_ptx));
	OK(cuModuleGetFunction(&other_set, module, "gpulimit_set"));
	OK(cuModuleGetFunction(&other_spin, module, "gpulimit_spin"));
	OK(spin(other_spin, NULL, 20000000, 0));
	set(other_set, NULL, flag, value);
	OK(cuCtxSetCurrent(here));
}

static void gives_up(void)
{
	uint64_t before = word(bails);
	double begin = now_ms();
	await(waiter, flag, 1000000, 30000000);
	OK(cuStreamSynchronize(waiter));
	WITHIN(29.9, now_ms() - begin, 200);
	SAME(before + 1, word(bails));
}

/* A stream that waits for a value holds no other, and keeps the card free. */
static void only_its_stream_waits(uint64_t value)
{
	OK(cuStreamWaitValue64_v2(waiter, flag, value, GEQ));
	OK(spin(spin_kernel, waiter, 1000000, 0));
	double begin = now_ms();
	OK(spin(spin_kernel, setter, 10000000, 0));
	OK(cuStreamSynchronize(setter));
	WITHIN(9.9, now_ms() - begin, 200);
	EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
	OK(cuStreamWriteValue64_v2(setter, flag, value, 0));
	OK(cuStreamSynchronize(waiter));
	WITHIN(10.9, now_ms() - begin, 300);
}

static void every_way_to_compare(void)
{
	static const struct { unsigned int how; uint64_t wanted, set; } ways[] = {
		{ GEQ, 5, 6 }, { EQ, 7, 7 }, { AND, 0x10, 0x18 }, { NOR, 0xf, UINT64_MAX - 0xff },
	};
	for (unsigned i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		OK(cuStreamWriteValue64_v2(setter, flag + 64, ways[i].how == NOR ? UINT64_MAX : 0, 0));
		OK(cuStreamSynchronize(setter));
		OK(cuStreamWaitValue64_v2(waiter, flag + 64, ways[i].wanted, ways[i].how));
		EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
		OK(cuStreamWriteValue64_v2(setter, flag + 64, ways[i].set, 0));
		OK(cuStreamSynchronize(waiter));
	}
}

/* The legacy stream has nothing to do with streams that do not wait for it; an event of the context has. */
static void who_waits_for_whom(uint64_t value)
{
	CUcontext ctx;
	CUevent event;
	OK(cuCtxGetCurrent(&ctx));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	await(waiter, flag, value, 100000000);
	double begin = now_ms();
	OK(spin(spin_kernel, NULL, 5000000, 0));
	OK(cuStreamSynchronize(NULL));
	WITHIN(4.9, now_ms() - begin, 95);
	OK(cuStreamQuery(NULL));
	EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
	OK(cuCtxRecordEvent(ctx, event));
	EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
	OK(cuEventSynchronize(event));
	OK(cuStreamQuery(waiter));
	WITHIN(99.9, now_ms() - begin + 1, 300);
}

/* A stream waits for another card's event; the thread that says so does not. */
static void an_event_of_another_card(void)
{
	CUcontext here, there;
	CUmodule module;
	CUfunction f;
	CUevent event;
	OK(cuCtxGetCurrent(&here));
	OK(cuDevicePrimaryCtxRetain(&there, 1));
	OK(cuCtxSetCurrent(there));
	OK(cuModuleLoadData(&module, waiting_ptx));
	OK(cuModuleGetFunction(&f, module, "gpulimit_spin"));
	OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	double begin = now_ms();
	OK(spin(f, NULL, 50000000, 0));
	OK(cuEventRecord(event, NULL));
	OK(cuCtxSetCurrent(here));
	OK(cuStreamWaitEvent(setter, event, 0));
	OK(spin(spin_kernel, setter, 5000000, 0));
	if (now_ms() - begin < 50)
		EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
	else
		FAIL("the thread waited");
	OK(spin(spin_kernel, waiter, 5000000, 0)); /* another stream does not */
	OK(cuStreamSynchronize(waiter));
	if (now_ms() - begin < 50)
		EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(setter));
	OK(cuStreamSynchronize(setter));
	WITHIN(54.9, now_ms() - begin, 300);
}

/* Memory that is free again is not the flag any more. */
static void memory_that_is_new(void)
{
	CUdeviceptr at;
	OK(cuMemAlloc_v2(&at, 4 << 20));
	OK(cuStreamWriteValue64_v2(setter, at, 12345, 0));
	OK(cuStreamSynchronize(setter));
	SAME(12345, word(at));
	OK(cuMemFree_v2(at));
	OK(cuMemAlloc_v2(&at, 4 << 20));
	OK(cuMemsetD8_v2(at, 0, 8));
	double begin = now_ms();
	await(waiter, at, 12345, 5000000);
	OK(cuStreamSynchronize(waiter));
	WITHIN(4.9, now_ms() - begin, 200);
}

/* The table of flags is bounded; those that nothing waits for make room. */
static void more_flags_than_the_table_holds(void)
{
	CUdeviceptr at;
	uint64_t value;
	OK(cuMemAlloc_v2(&at, 4 << 20));
	for (uint64_t i = 0; i < 3000; i++)
		OK(cuStreamWriteValue64_v2(setter, at + 8 * i, i + 1, 0));
	OK(cuStreamSynchronize(setter));
	for (uint64_t i = 0; i < 3000; i += 7)
		SAME(i + 1, word(at + 8 * i));
	OK(cuMemcpyDtoHAsync_v2(&value, at, 8, setter));
	OK(cuStreamSynchronize(setter));
	SAME(1, value);
}

int main(void)
{
	CUmodule module;
	start();
	OK(cuModuleLoadData(&module, waiting_ptx));
	OK(cuModuleGetFunction(&spin_kernel, module, "gpulimit_spin"));
	OK(cuModuleGetFunction(&await_kernel, module, "gpulimit_await"));
	OK(cuModuleGetFunction(&set_kernel, module, "gpulimit_set"));
	OK(cuStreamCreate(&waiter, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&setter, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc_v2(&flag, 4096));
	OK(cuMemsetD8_v2(flag, 0, 4096));
	bails = flag + 2048;
	flag += 8;
	sets_it("kernel", by_kernel, 1);
	sets_it("stream write", by_write, 2);
	sets_it("32-bit stream write", by_half, 3);
	sets_it("memset", by_memset, 4);
	sets_it("copy", by_copy, 5);
	sets_it("copy on the card", by_copy_on_the_card, 6);
	sets_it("graph", by_graph, 7);
	sets_it("legacy stream", by_legacy_stream, 8);
	sets_it("another card", by_another_card, 9);
	gives_up();
	only_its_stream_waits(20);
	every_way_to_compare();
	who_waits_for_whom(2000000);
	an_event_of_another_card();
	memory_that_is_new();
	more_flags_than_the_table_holds();
	return done();
}
