/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA program that does what its standard input says, one answer line for each line: for tests that look at a
 * running process from outside.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

#define CU_HOOK(name, class, params, args) CUresult name params;
#define CU_CALL(name, params) CUresult name params;
#define NVML_HOOK(name, class, params, args) nvmlReturn_t name params;
#define NVML_CALL(name, params) nvmlReturn_t name params;
#include "hooks.def"
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuStreamSynchronize(CUstream stream);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			  ".visible .entry gpulimit_spin(\n\t.param .u64 ns,\n\t.param .u64 out\n)\n{ ret; }\n";
static CUfunction spin;
static unsigned long long loop_ns, looped;
static CUcontext context;

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static CUresult launch(uint64_t ns)
{
	CUdeviceptr out = 0;
	void *params[] = {&ns, &out};
	return cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL);
}

static CUresult init(void)
{
	CUmodule module;
	CUresult r = cuInit(0);
	if (!r)
		r = cuDevicePrimaryCtxRetain(&context, 0);
	if (!r)
		r = cuCtxSetCurrent(context);
	if (!r)
		r = cuModuleLoadData(&module, ptx);
	return r ? r : cuModuleGetFunction(&spin, module, "gpulimit_spin");
}

static void *looping(void *unused)
{
	unsigned long long ns;
	cuCtxSetCurrent(context);
	while ((ns = __atomic_load_n(&loop_ns, __ATOMIC_ACQUIRE))) {
		if (launch(ns) != CUDA_SUCCESS)
			exit(3);
		__atomic_add_fetch(&looped, 1, __ATOMIC_RELEASE);
	}
	return unused;
}

static unsigned long long number(const char *line)
{
	const char *space = strchr(line, ' ');
	return space ? strtoull(space, NULL, 0) : 0;
}

static void say_spin(const char *line)
{
	double begin = now_s();
	unsigned long long count = strtoull(strrchr(line, ' '), NULL, 0);
	CUresult r = CUDA_SUCCESS;
	for (unsigned long long i = 0; i < count && !r; i++)
		r = launch(number(line));
	if (!r)
		r = cuStreamSynchronize(NULL);
	printf("%d %.4f\n", r, now_s() - begin);
}

static void say_nvml(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory = {0};
	nvmlReturn_t r = nvmlInit_v2();
	if (!r)
		r = nvmlDeviceGetHandleByIndex_v2(0, &device);
	if (!r)
		r = nvmlDeviceGetMemoryInfo(device, &memory);
	printf("%d %llu\n", r, (unsigned long long)memory.total);
}

/* The child goes on with the conversation; the parent only waits for it. */
static void become_child(void)
{
	int status;
	pid_t child = fork();
	if (child == 0)
		return;
	waitpid(child, &status, 0);
	_exit(WEXITSTATUS(status));
}

/* So many children at once, each with a first CUDA call of its own; how many of them could make it, and a zero. */
static void say_crowd(int count)
{
	int status, good = 0, failed = 0, ends[2];
	char byte;
	if (pipe(ends))
		exit(1);
	for (int i = 0; i < count; i++) {
		pid_t child = fork();
		failed += child < 0;
		if (child)
			continue;
		close(ends[1]);
		/* Until the parent has made them all. */
		_exit(read(ends[0], &byte, 1) == 0 && cuInit(0) == CUDA_SUCCESS ? 0 : 1);
	}
	close(ends[0]);
	close(ends[1]);
	while (wait(&status) > 0)
		good += status == 0;
	printf("%d %d\n", good, failed);
}

static int pairs[32][2], taken;

/* Closes sockets that it did not open, as some programs do that become daemons, and has its own under their numbers. */
static int take_sockets(void)
{
	struct stat st;
	for (int fd = 3; fd < 300; fd++) {
		if (fstat(fd, &st) || !S_ISSOCK(st.st_mode) || taken == 32)
			continue;
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[taken]) || dup2(pairs[taken][0], fd) != fd)
			return -1;
		pairs[taken][0] = fd;
		if (write(pairs[taken++][1], "mine", 4) != 4)
			return -1;
	}
	return taken;
}

/* How many of them still have what was written, and both ends. */
static int still_there(void)
{
	int count = 0;
	char text[8];
	for (int i = 0; i < taken; i++)
		count += recv(pairs[i][0], text, sizeof text, MSG_DONTWAIT) == 4 && write(pairs[i][0], "back", 4) == 4;
	return count;
}

static void obey(const char *line)
{
	size_t free_bytes = 0, total = 0;
	CUdeviceptr pointer;
	if (strncmp(line, "init", 4) == 0)
		printf("%d\n", init());
	else if (strncmp(line, "alloc", 5) == 0)
		printf("%d\n", cuMemAlloc_v2(&pointer, number(line)));
	else if (strncmp(line, "total", 5) == 0) {
		CUresult r = cuMemGetInfo_v2(&free_bytes, &total);
		printf("%d %zu\n", r, total);
	} else if (strncmp(line, "spin", 4) == 0)
		say_spin(line);
	else if (strncmp(line, "count", 5) == 0)
		printf("%llu\n", __atomic_load_n(&looped, __ATOMIC_ACQUIRE));
	else if (strncmp(line, "loop", 4) == 0) {
		pthread_t thread;
		loop_ns = number(line);
		printf("%d\n", pthread_create(&thread, NULL, looping, NULL));
	} else if (strncmp(line, "stop", 4) == 0) {
		__atomic_store_n(&loop_ns, 0, __ATOMIC_RELEASE);
		printf("0\n");
	} else if (strncmp(line, "nvml", 4) == 0)
		say_nvml();
	else if (strncmp(line, "fork", 4) == 0) {
		become_child();
		printf("%d\n", getpid());
	} else if (strncmp(line, "take", 4) == 0)
		printf("%d\n", take_sockets());
	else if (strncmp(line, "crowd", 5) == 0)
		say_crowd((int)number(line));
	else if (strncmp(line, "kept", 4) == 0)
		printf("%d\n", still_there());
	else if (strncmp(line, "leave", 5) == 0) {
		fflush(stdout);
		pthread_exit(NULL);
	} else
		printf("what?\n");
}

int main(void)
{
	char line[256];
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin))
		obey(line);
	return 0;
}
