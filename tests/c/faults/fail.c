/* SPDX-License-Identifier: Apache-2.0
 * Lets system calls of one kind fail, as told in a file that the test maps too: for LD_PRELOAD into the daemon. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#undef open
#undef open64
#undef openat
#undef openat64
#undef mmap64
#undef ftruncate64
#undef posix_fallocate64

struct orders {
	char kind[16];
	int32_t error;
	int32_t skip;  /* calls of the kind that succeed first */
	int32_t left;  /* calls that fail then; negative: all */
	int32_t count; /* calls that failed */
};

static struct orders *orders;

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("TEST_FAULTS");
	int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	void *map = (void *)syscall(SYS_mmap, NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	syscall(SYS_close, fd);
	orders = map == MAP_FAILED ? NULL : map;
}

static int fails(const char *kind)
{
	if (!orders || __atomic_load_n(&orders->left, __ATOMIC_ACQUIRE) == 0 || strcmp(orders->kind, kind) != 0)
		return 0;
	if (__atomic_fetch_sub(&orders->skip, 1, __ATOMIC_RELAXED) > 0)
		return 0;
	if (orders->left > 0)
		__atomic_fetch_sub(&orders->left, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&orders->count, 1, __ATOMIC_RELAXED);
	errno = orders->error;
	return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPEN(name)                                                     \
	int name(const char *path, int flags, ...)                     \
	{                                                              \
		va_list list;                                          \
		va_start(list, flags);                                 \
		mode_t mode = va_arg(list, mode_t);                    \
		va_end(list);                                          \
		return fails("open") ? -1 : REAL(name)(path, flags, mode); \
	}
#define OPENAT(name)                                                            \
	int name(int at, const char *path, int flags, ...)                      \
	{                                                                       \
		va_list list;                                                   \
		va_start(list, flags);                                          \
		mode_t mode = va_arg(list, mode_t);                             \
		va_end(list);                                                   \
		return fails("open") ? -1 : REAL(name)(at, path, flags, mode);  \
	}
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int shm_open(const char *name, int flags, mode_t mode)
{
	return fails("open") ? -1 : REAL(shm_open)(name, flags, mode);
}

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
	return fails("accept") ? -1 : REAL(accept4)(fd, address, size, flags);
}

int socket(int domain, int type, int protocol)
{
	return fails("socket") ? -1 : REAL(socket)(domain, type, protocol);
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
	return name == 77 && fails("pidfd") ? -1 : REAL(getsockopt)(fd, level, name, value, size);
}

void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	return (flags & MAP_SHARED) && fd >= 0 && fails("mmap") ? MAP_FAILED : REAL(mmap)(at, size, prot, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	return mmap(at, size, prot, flags, fd, offset);
}

int ftruncate(int fd, off_t size)
{
	return fails("truncate") ? -1 : REAL(ftruncate)(fd, size);
}

int ftruncate64(int fd, off_t size)
{
	return ftruncate(fd, size);
}

int posix_fallocate(int fd, off_t offset, off_t size)
{
	return fails("fallocate") ? errno : REAL(posix_fallocate)(fd, offset, size);
}

int posix_fallocate64(int fd, off_t offset, off_t size)
{
	return posix_fallocate(fd, offset, size);
}

ssize_t write(int fd, const void *data, size_t size)
{
	return fd > 2 && fails("write") ? -1 : REAL(write)(fd, data, size);
}

int fsync(int fd)
{
	return fails("fsync") ? -1 : REAL(fsync)(fd);
}

int dup(int fd)
{
	return fails("dup") ? -1 : REAL(dup)(fd);
}

int rename(const char *from, const char *to)
{
	return fails("rename") ? -1 : REAL(rename)(from, to);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	return fails("sendmsg") ? -1 : REAL(sendmsg)(fd, message, flags);
}

pid_t fork(void)
{
	return fails("fork") ? -1 : REAL(fork)();
}
