/* SPDX-License-Identifier: Apache-2.0
 *
 * Read before any other header (-include) when wheels are built: what is linked with this system's glibc then loads
 * with glibc 2.17 too.  Functions that newer glibc has under a newer version as well are asked for under the old one;
 * those that it did not have are system calls.  The libraries that get preloaded do not need this.
 */
#ifndef OLD_GLIBC_H
#define OLD_GLIBC_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OLD(name, x86_64, aarch64) __asm__(".symver " #name "," #name "@GLIBC_" x86_64)
#elif defined(__aarch64__)
#define OLD(name, x86_64, aarch64) __asm__(".symver " #name "," #name "@GLIBC_" aarch64)
#else
#error "no wheel for this processor"
#endif

OLD(dladdr, "2.2.5", "2.17");
OLD(pthread_create, "2.2.5", "2.17");
OLD(pthread_detach, "2.2.5", "2.17");
OLD(pthread_mutex_consistent, "2.12", "2.17");
OLD(pthread_mutexattr_destroy, "2.2.5", "2.17");
OLD(pthread_mutexattr_init, "2.2.5", "2.17");
OLD(pthread_mutexattr_setpshared, "2.2.5", "2.17");
OLD(pthread_mutexattr_setrobust, "2.12", "2.17");
OLD(pthread_once, "2.2.5", "2.17");
OLD(pthread_sigmask, "2.2.5", "2.17");

/* On both processors the kernel's struct stat is glibc's. */
static inline int old_stat(const char *path, struct stat *out)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0);
}

static inline int old_fstat(int fd, struct stat *out)
{
	return (int)syscall(SYS_fstat, fd, out);
}

static inline int old_memfd_create(const char *name, unsigned int flags)
{
	return (int)syscall(SYS_memfd_create, name, flags);
}

#define stat(path, out) old_stat(path, out)
#define fstat(fd, out) old_fstat(fd, out)
#define memfd_create(name, flags) old_memfd_create(name, flags)

#endif
