/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the library's own system calls fail.  Preloaded before it; other code's calls are let through.
 *
 *   SYSTEM_FAULT=NAME:NTH:ERRNO   the nth call of that name fails so (0: each); names are those of `calls` below
 *   SYSTEM_CALLS=FILE             at the end, a line "NAME COUNT" for each name that the library called
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MMAP = -1, MADVISE = -2 };
static struct call {
	const char *name;
	long number;
	atomic_int count;
} calls[] = {{"openat", SYS_openat, 0},	  {"fstat", SYS_fstat, 0},	 {"ftruncate", SYS_ftruncate, 0},
	     {"fcntl", SYS_fcntl, 0},	  {"fallocate", SYS_fallocate, 0}, {"read", SYS_read, 0},
	     {"write", SYS_write, 0},	  {"readlinkat", SYS_readlinkat, 0}, {"socket", SYS_socket, 0},
	     {"connect", SYS_connect, 0}, {"sendto", SYS_sendto, 0},	 {"recvmsg", SYS_recvmsg, 0},
	     {"ppoll", SYS_ppoll, 0},	  {"futex", SYS_futex, 0},	 {"getsockopt", SYS_getsockopt, 0},
	     {"nanosleep", SYS_nanosleep, 0}, {"geteuid", SYS_geteuid, 0}, {"mmap", MMAP, 0}, {"madvise", MADVISE, 0}};
enum { CALLS = sizeof calls / sizeof *calls };

static char fault_name[32];
static int fault_nth, fault_errno;

/* Threads cannot be made: the library finds pthread_create by itself, so the kernel has to refuse. */
static void refuse_clone(int error)
{
#ifdef SYS_clone3
	const unsigned second = SYS_clone3;
#else
	const unsigned second = SYS_clone;
#endif
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, second, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(77);
}

__attribute__((constructor)) static void begin(void)
{
	const char *spec = getenv("SYSTEM_FAULT");
	if (spec && sscanf(spec, "%31[^:]:%d:%d", fault_name, &fault_nth, &fault_errno) != 3)
		_exit(78);
	if (!strcmp(fault_name, "clone"))
		refuse_clone(fault_errno);
}

__attribute__((destructor)) static void end(void)
{
	const char *path = getenv("SYSTEM_CALLS");
	FILE *file = path ? fopen(path, "w") : NULL;
	for (int i = 0; file && i < CALLS; i++)
		if (calls[i].count)
			fprintf(file, "%s %d\n", calls[i].name, calls[i].count);
	if (file)
		fclose(file);
}

static int from_the_library(const void *caller)
{
	Dl_info info;
	return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "libgpulimit");
}

static int fails(long number)
{
	for (int i = 0; i < CALLS; i++) {
		if (calls[i].number != number)
			continue;
		int count = atomic_fetch_add(&calls[i].count, 1) + 1;
		return !strcmp(calls[i].name, fault_name) && (!fault_nth || count == fault_nth);
	}
	return 0;
}

long syscall(long number, ...)
{
	static long (*real)(long, ...);
	long a[6];
	va_list list;
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (!real)
		real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	if (from_the_library(__builtin_return_address(0)) && fails(number)) {
		errno = fault_errno;
		return -1;
	}
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
	static void *(*real)(void *, size_t, int, int, int, off_t);
	if (!real)
		real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
	if (from_the_library(__builtin_return_address(0)) && fails(MMAP)) {
		errno = fault_errno;
		return MAP_FAILED;
	}
	return real(at, size, protection, flags, fd, offset);
}

int madvise(void *at, size_t size, int advice)
{
	static int (*real)(void *, size_t, int);
	if (!real)
		real = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");
	if (from_the_library(__builtin_return_address(0)) && fails(MADVISE)) {
		errno = fault_errno;
		return -1;
	}
	return real(at, size, advice);
}
