/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes made in every way there is, each of which takes 8 MiB, says "PID CODE" and waits to be killed.
 *
 * Usage: ways fork|nested|vfork|spawn|daemon|clone N
 *        ways hold MIB         takes that much itself
 *        ways used             CUDA in the parent, then in a forked child: "CODES" of the child, then the parent holds on
 *        ways only-fork        CUDA in the parent, none in a forked child: "PID 0", then "child PID"; both wait
 *        ways exec             CUDA, then exec of itself holding 8 MiB
 */
#include <spawn.h>
#include <sys/syscall.h>

#include "any_memory.h"

extern char **environ;

static void hold(size_t mib)
{
	CUcontext context = NULL;
	CUdeviceptr p;
	CUresult r = cuInit(0);
	r = r ? r : cuDevicePrimaryCtxRetain(&context, 0);
	r = r ? r : cuCtxSetCurrent(context);
	r = r ? r : cuMemAlloc_v2(&p, mib << 20);
	printf("%d %d\n", getpid(), r);
	fflush(stdout);
	alarm(60); /* whatever becomes of the test */
	for (;;)
		pause();
}

static void forked(int depth)
{
	pid_t pid = fork();
	if (pid == 0) {
		if (depth)
			forked(depth - 1);
		hold(8);
	}
}

static void execute(char *self)
{
	execl(self, self, "hold", "8", (char *)NULL);
	_exit(127);
}

static void make(const char *way, char *self)
{
	pid_t pid;
	char *argv[] = {self, "hold", "8", NULL};
	if (!strcmp(way, "fork"))
		forked(0);
	else if (!strcmp(way, "nested"))
		forked(1);
	else if (!strcmp(way, "vfork") && (pid = vfork()) == 0)
		execute(self);
	else if (!strcmp(way, "spawn"))
		posix_spawn(&pid, self, NULL, NULL, argv, environ);
	else if (!strcmp(way, "clone") && syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0)
		hold(8);
	else if (!strcmp(way, "daemon") && (pid = fork()) == 0) {
		setsid();
		if (fork() == 0) {
			if (chdir("/"))
				_exit(1);
			for (int fd = 3; fd < 1024; fd++)
				close(fd);
			hold(8);
		}
		_exit(0);
	}
}

static void in_child_of_a_user(CUdeviceptr p)
{
	CUcontext context;
	CUdeviceptr q;
	size_t free, total;
	printf("%d", cuInit(0));
	printf(" %d", cuDevicePrimaryCtxRetain(&context, 0));
	printf(" %d", cuMemAlloc_v2(&q, 1 << 20));
	printf(" %d", cuMemFree_v2(p));
	printf(" %d", cuMemGetInfo_v2(&free, &total));
	printf(" %d\n", cuDevicePrimaryCtxReset_v2(0));
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";
	struct any_place place;
	CUdeviceptr p;
	if (!strcmp(way, "hold"))
		hold((size_t)atoi(argv[2]));
	if (!strcmp(way, "used") || !strcmp(way, "only-fork") || !strcmp(way, "exec")) {
		OK(any_begin(&place));
		OK(cuMemAlloc_v2(&p, 8 << 20));
		if (!strcmp(way, "exec"))
			execute("/proc/self/exe");
		pid_t child = fork();
		if (child == 0 && !strcmp(way, "used"))
			in_child_of_a_user(p);
		if (child == 0) {
			printf("child %d\n", getpid());
			fflush(stdout);
			alarm(60);
			pause();
		}
		if (!strcmp(way, "used"))
			waitpid(child, NULL, 0);
		printf("%d %d\n", getpid(), failures);
		fflush(stdout);
		alarm(60);
		for (;;)
			pause();
	}
	for (int i = 0; i < atoi(argv[2]); i++)
		make(way, argv[0]);
	alarm(60);
	for (;;)
		pause();
}
