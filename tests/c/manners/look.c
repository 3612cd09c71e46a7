/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints what a library could have changed of its process: mapped files, descriptors, threads, signal handlers and
 * mask, umask, timers, limits, environment.  Usage: look [--help | cuda | nvml]: first does nothing, or some work.
 */
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "books.h"

extern char **environ;

static void list(const char *directory)
{
	char path[300], target[300];
	struct dirent *entry;
	DIR *dir = opendir(directory);
	while (dir && (entry = readdir(dir))) {
		snprintf(path, sizeof path, "%s/%.200s", directory, entry->d_name);
		ssize_t n = readlink(path, target, sizeof target - 1);
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir) && n > 0) {
			target[n] = 0;
			printf("fd %s\n", strchr(target, '[') ? "pipe" : target);
		}
	}
	closedir(dir);
}

static void count(const char *what, const char *directory)
{
	int n = 0;
	struct dirent *entry;
	DIR *dir = opendir(directory);
	while (dir && (entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	closedir(dir);
	printf("%s %d\n", what, n);
}

static void show_maps(void)
{
	char line[600], last[600] = "";
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps)) {
		char *path = strchr(line, '/');
		if (path && strcmp(path, last))
			printf("map %s", strcpy(last, path));
	}
	fclose(maps);
}

static void show_signals(void)
{
	sigset_t mask;
	sigprocmask(SIG_SETMASK, NULL, &mask);
	for (int n = 1; n < 65; n++) {
		struct sigaction a;
		if (sigaction(n, NULL, &a) == 0 && (a.sa_handler != SIG_DFL || sigismember(&mask, n)))
			printf("signal %d handler %d flags %x masked %d\n", n, a.sa_handler != SIG_DFL, (unsigned)a.sa_flags,
			       sigismember(&mask, n));
	}
}

static void work_cuda(void)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry plain() { ret; }\n";
	CUcontext context;
	CUdeviceptr p, q;
	CUmodule module;
	CUfunction f;
	size_t free, total;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc_v2(&p, 1 << 20));
	OK(cuMemAllocAsync(&q, 1 << 20, NULL));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&f, module, "plain"));
	for (int i = 0; i < 200; i++)
		OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
	OK(cuMemGetInfo_v2(&free, &total));
	OK(cuMemFreeAsync(q, NULL));
	OK(cuMemFree_v2(p));
	OK(cuCtxSynchronize());
}

static void work_nvml(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) || nvmlDeviceGetMemoryInfo(device, &memory))
		FAIL("NVML");
}

int main(int argc, char **argv)
{
	struct itimerval timer;
	struct rlimit limit;
	if (argc > 1 && !strcmp(argv[1], "--help")) {
		puts("usage: look");
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "cuda"))
		work_cuda();
	if (argc > 1 && !strcmp(argv[1], "nvml"))
		work_nvml();
	show_maps();
	list("/proc/self/fd");
	count("threads", "/proc/self/task");
	show_signals();
	for (int which = ITIMER_REAL; which <= ITIMER_PROF; which++)
		if (getitimer(which, &timer) == 0 && (timer.it_value.tv_sec || timer.it_value.tv_usec))
			printf("timer %d\n", which);
	for (int which = 0; which < RLIM_NLIMITS; which++)
		if (getrlimit(which, &limit) == 0)
			printf("limit %d %llx %llx\n", which, (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
	mode_t mask = umask(0);
	printf("umask %o\n", mask);
	for (char **e = environ; *e; e++)
		if (strncmp(*e, "LD_PRELOAD", 10))
			printf("env %s\n", *e);
	return failures != 0;
}
