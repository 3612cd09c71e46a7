/* SPDX-License-Identifier: Apache-2.0
 *
 * The system calls, atomics and the lock that the shim uses.  Files, futexes and record locks go through
 * syscall(2) instead of libc's wrappers: newer libcs give those wrappers new symbol versions (fcntl64 in
 * 2.28, stat in 2.33), and the library must load wherever glibc is at least 2.17, and on musl.  It also keeps
 * the sanitizers' and other preloaded libraries' interceptors out of the way.  Errors are negative errno; the
 * caller's errno is kept by the macros below.
 */
#ifndef GL_SYS_H
#define GL_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define GL_SECOND_NS UINT64_C(1000000000)

#define GL_LIKELY(x) __builtin_expect(!!(x), 1)
#define GL_UNLIKELY(x) __builtin_expect(!!(x), 0)

#define gl_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define gl_load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define gl_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define gl_store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define gl_add_relaxed(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
#define gl_sub_relaxed(p, v) __atomic_fetch_sub((p), (v), __ATOMIC_RELAXED)

static inline long gl_errno_result(long result, int kept)
{
	long out = result < 0 ? -errno : result;
	errno = kept;
	return out;
}
/* A system call that returns negative errno and leaves errno alone. */
#define gl_syscall(...) (__extension__({ int kept_ = errno; gl_errno_result(syscall(__VA_ARGS__), kept_); }))

static inline int gl_open(const char *path, int flags, int mode)
{
	return (int)gl_syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode);
}

static inline void gl_close(int fd)
{
	(void)gl_syscall(SYS_close, fd);
}

/* Duplicates the descriptor to a high number, which programs neither expect to get nor close.  Or negative errno. */
static inline int gl_dup_high(int fd)
{
	enum { MIN_DESCRIPTOR = 200 };
	return (int)gl_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, MIN_DESCRIPTOR);
}

/* Moves the descriptor to a high number; without room it keeps its number. */
static inline int gl_moved_up(int fd)
{
	int high = gl_dup_high(fd);
	if (high < 0)
		return fd;
	gl_close(fd);
	return high;
}

/* True if no file can be opened now for want of descriptors, so that other failures at this moment have that cause. */
static inline bool gl_no_descriptors(void)
{
	int fd = gl_open("/dev/null", O_RDONLY, 0);
	if (fd >= 0)
		gl_close(fd);
	return fd == -EMFILE || fd == -ENFILE;
}

static inline uint32_t gl_getpid(void)
{
	return (uint32_t)gl_syscall(SYS_getpid);
}

static inline struct timespec gl_timespec(uint64_t ns)
{
	return (struct timespec){(time_t)(ns / GL_SECOND_NS), (long)(ns % GL_SECOND_NS)};
}

static inline uint64_t gl_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * GL_SECOND_NS + (uint64_t)t.tv_nsec;
}

/* Sleeps while *word == expected, at most timeout_ns.  Works across processes.  A signal ends it early. */
static inline int gl_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
	struct timespec t = gl_timespec(timeout_ns);
	return (int)gl_syscall(SYS_futex, word, FUTEX_WAIT, expected, &t, NULL, 0);
}

static inline void gl_futex_wake(uint32_t *word, int count)
{
	(void)gl_syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

/* A lock between the threads of one process.  All of them lie in gl_self, which a fork wipes, so that a child
 * never inherits one held by a thread it does not have.  Zero is unlocked. */
struct gl_lock {
	uint32_t word; /* 0 free, 1 held, 2 held and waited for */
};

static inline void gl_lock(struct gl_lock *lock)
{
	uint32_t free = 0;
	if (GL_LIKELY(__atomic_compare_exchange_n(&lock->word, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)))
		return;
	while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_ACQUIRE) != 0)
		(void)gl_syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline bool gl_try_lock(struct gl_lock *lock)
{
	uint32_t free = 0;
	return __atomic_compare_exchange_n(&lock->word, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void gl_unlock(struct gl_lock *lock)
{
	if (GL_UNLIKELY(__atomic_exchange_n(&lock->word, 0, __ATOMIC_RELEASE) == 2))
		(void)gl_syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
