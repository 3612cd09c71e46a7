/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that closes descriptors it did not open, and gets the library's number for a file of its own.  A lock on
 * that file says nothing about the tenant's other processes: they must not be taken for dead.
 */
#include "any_memory.h"

enum { HELD = 8 << 20 };

/* A second living process of the tenant, holding memory until the pipe closes. */
static void start_neighbour(char **argv, int ready, const int stay[2])
{
	if (fork() == 0) {
		char a[12], b[12];
		snprintf(a, sizeof a, "%d", ready);
		snprintf(b, sizeof b, "%d", stay[0]);
		close(stay[1]);
		execl("/proc/self/exe", argv[0], a, b, (char *)NULL);
		_exit(127);
	}
}

static int hold(char **argv)
{
	struct any_place place;
	CUdeviceptr p;
	char c;
	OK(any_begin(&place));
	OK(cuMemAlloc_v2(&p, HELD));
	OK(write(atoi(argv[1]), "", 1) != 1);
	return read(atoi(argv[2]), &c, 1) != 0;
}

static int take_over(void)
{
	int taken = 0, mine = memfd_create("mine", MFD_CLOEXEC);
	for (int fd = 3; fd < 1024; fd++) {
		char link[64], target[256] = "";
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		if (readlink(link, target, sizeof target - 1) > 0 && strstr(target, "gpulimit.u."))
			taken += dup2(mine, fd) == fd;
	}
	return taken;
}

int main(int argc, char **argv)
{
	int ready[2], stay[2];
	struct any_place place;
	size_t free_before, free_after, total;
	char c;
	if (argc > 2)
		return hold(argv);
	OK(pipe(ready) || pipe(stay));
	start_neighbour(argv, ready[1], stay);
	OK(read(ready[0], &c, 1) != 1);
	OK(any_begin(&place));
	OK(cuMemGetInfo_v2(&free_before, &total));
	OK(take_over() != 1);
	OK(cuMemGetInfo_v2(&free_after, &total));
	OK(total - free_before < HELD);
	OK(free_after != free_before);
	return failures != 0;
}
