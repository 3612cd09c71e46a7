/* SPDX-License-Identifier: Apache-2.0
 *
 * For small CUDA programs that compare the tenant's books with the card: the driver's prototypes, the books read from
 * the segment, and the card's truth, asked by a child that runs without the shim.
 */
#ifndef GL_TEST_BOOKS_H
#define GL_TEST_BOOKS_H

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"
#include "layout.h"

#define CU_HOOK(name, class, params, args) CUresult name params;
#define CU_CALL(name, params) CUresult name params;
#define NVML_HOOK(name, class, params, args) nvmlReturn_t name params;
#define NVML_CALL(name, params) nvmlReturn_t name params;
#include "hooks.def"
#undef CU_HOOK
#undef CU_CALL
#undef NVML_HOOK
#undef NVML_CALL
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value);
CUresult cuCtxSynchronize(void);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuMemsetD8_v2(CUdeviceptr ptr, unsigned char value, size_t count);
CUresult cuDeviceGetDevResource(CUdevice dev, void *resource, int type);
CUresult cuDevSmResourceSplitByCount(void *parts, unsigned int *count, const void *in, void *rest, unsigned int flags,
				     unsigned int least);
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, void *resources, unsigned int count);

static int failures;

#define FAIL(...)                                                               \
	do {                                                                    \
		printf("%s:%d: ", __func__, __LINE__);                          \
		printf(__VA_ARGS__);                                            \
		putchar('\n');                                                  \
		failures++;                                                     \
	} while (0)
#define EXPECT(code, call)                                                      \
	do {                                                                    \
		CUresult got_ = (call);                                         \
		if (got_ != (code))                                             \
			FAIL("%s gave %d, not %d", #call, got_, code);          \
	} while (0)
#define OK(call) EXPECT(CUDA_SUCCESS, call)
#define REFUSED(call) EXPECT(CUDA_ERROR_OUT_OF_MEMORY, call)

/* ---- the card's truth ---- */

static int card_ask, card_answer;

static unsigned long long listed(nvmlDevice_t device, unsigned int pid)
{
	nvmlProcessInfo_v2_t info[64];
	unsigned int count = 64;
	if (nvmlDeviceGetComputeRunningProcesses_v3(device, &count, info))
		return ~0ull;
	for (unsigned int i = 0; i < count; i++)
		if (info[i].pid == pid)
			return info[i].usedGpuMemory;
	return 0;
}

static int serve_card(void)
{
	nvmlDevice_t device;
	nvmlMemory_v2_t memory = {.version = NVML_MEMORY_V2};
	char byte;
	if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device))
		return 1;
	/* On a real card others hold memory too, so there the figure is the process's own, which leaves out managed
	 * memory; a simulated one is this test's alone. */
	bool real = getenv("GPULIMIT_TEST_REAL") != NULL;
	while (read(0, &byte, 1) == 1) {
		unsigned long long used = nvmlDeviceGetMemoryInfo_v2(device, &memory) ? ~0ull : memory.used;
		if (real)
			used = listed(device, (unsigned int)getppid());
		if (write(1, &used, sizeof used) != sizeof used)
			return 1;
	}
	return 0;
}

/* First thing in main: becomes the child that asks the card if told so by its arguments, else starts it. */
static void start_card(int argc, char **argv)
{
	int ask[2], answer[2];
	if (argc > 1 && !strcmp(argv[1], "--card"))
		exit(serve_card());
	if (pipe2(ask, O_CLOEXEC) || pipe2(answer, O_CLOEXEC))
		exit(2);
	if (fork() == 0) {
		unsetenv("LD_PRELOAD");
		unsetenv("GPULIMIT_SIM_FAULTS");
		dup2(ask[0], 0);
		dup2(answer[1], 1);
		execl("/proc/self/exe", argv[0], "--card", (char *)NULL);
		_exit(2);
	}
	close(ask[0]);
	close(answer[1]);
	card_ask = ask[1];
	card_answer = answer[0];
	setvbuf(stdout, NULL, _IOLBF, 0);
}

static uint64_t card_used(void)
{
	unsigned long long used = ~0ull;
	if (write(card_ask, "?", 1) != 1 || read(card_answer, &used, sizeof used) != sizeof used)
		FAIL("the card does not answer");
	return used;
}

/* ---- the tenant's books ---- */

static const struct gl_usage *books(void)
{
	static const struct gl_usage *usage;
	char path[128];
	if (!usage) {
		snprintf(path, sizeof path, "/dev/shm/gpulimit.u.%s", getenv("GPULIMIT_TENANT"));
		int fd = open(path, O_RDONLY);
		void *p = mmap(NULL, sizeof *usage, PROT_READ, MAP_SHARED, fd, 0);
		if (fd < 0 || p == MAP_FAILED) {
			printf("no books at %s\n", path);
			exit(2);
		}
		usage = p;
	}
	return usage;
}

#define BYTES(word) ((word) & ((UINT64_C(1) << 48) - 1))

__attribute__((unused)) static uint64_t booked(void)
{
	return BYTES(__atomic_load_n(&books()->device[0].ledger, __ATOMIC_ACQUIRE));
}

static const struct gl_account *account(void)
{
	for (int i = 0; i < GL_MAX_SLOTS; i++)
		if (books()->slot[i].generation % 2 && books()->slot[i].pid == (uint32_t)getpid())
			return &books()->slot[i].account[0];
	printf("this process has no slot\n");
	exit(2);
}

__attribute__((unused)) static uint64_t booked_kind(enum gl_memory_kind kind)
{
	return __atomic_load_n(&account()->kind_bytes[kind], __ATOMIC_ACQUIRE);
}

#define BOOKED(bytes)                                                                                             \
	do {                                                                                                      \
		uint64_t booked_ = booked(), want_ = (bytes);                                                     \
		if (booked_ != want_)                                                                             \
			FAIL("%llu bytes booked, not %llu", (unsigned long long)booked_, (unsigned long long)want_); \
	} while (0)
/* The books say what the card says, and both say `bytes`. */
#define TRUE_BYTES(bytes)                                                                                         \
	do {                                                                                                      \
		uint64_t held_ = card_used();                                                                     \
		BOOKED(bytes);                                                                                    \
		if (held_ != (uint64_t)(bytes))                                                                   \
			FAIL("the card holds %llu bytes, not %llu", (unsigned long long)held_,                    \
			     (unsigned long long)(bytes));                                                        \
	} while (0)

#endif
