/* SPDX-License-Identifier: Apache-2.0 */
#include "segment/alive.h"

#include <sys/stat.h>

#include "base/sys.h"
#include "segment/slots.h"
#include "state/state.h"

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif
enum { PAGE = 4096, LOCK_TRIES = 100 };

/* 0: the descriptor refers to the segment; -EBADF: it refers to another file, or is closed; or negative errno. */
static int check(int fd)
{
	struct stat st;
	int r = (int)gl_syscall(SYS_fstat, fd, &st);
	return r != 0 ? r : st.st_ino == gl_self.inode && st.st_dev == gl_self.device ? 0 : -EBADF;
}

int gl_alive_remember(int fd)
{
	struct stat st;
	int r = (int)gl_syscall(SYS_fstat, fd, &st);
	if (r != 0)
		return r;
	gl_self.inode = st.st_ino;
	gl_self.device = st.st_dev;
	return 0;
}

int gl_alive_check_file(void)
{
	return check(gl_self.fd);
}

/* Opens the file once more, as a description that no other process shares. */
static int open_apart(int fd)
{
	char path[32] = "/proc/self/fd/";
	int first = sizeof "/proc/self/fd/" - 1, last = first;
	for (int rest = fd / 10; rest; rest /= 10)
		last++;
	for (int at = last, rest = fd; at >= first; at--, rest /= 10)
		path[at] = (char)('0' + rest % 10);
	return gl_open(path, O_RDWR, 0);
}

/* The lock on the second byte, kept by a mapping. */
static bool lock_lastingly(int fd, uint64_t offset)
{
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = 1};
	if (gl_syscall(SYS_fcntl, fd, F_OFD_SETLK, &range) != 0)
		return false;
	void *at = mmap(NULL, PAGE, PROT_NONE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return false; /* the lock goes with the descriptor */
	if (madvise(at, PAGE, MADV_DONTFORK) == 0)
		return true;
	munmap(at, PAGE); /* a child would keep it after this process's death */
	return false;
}

/* A reaper that tries the slot at this moment only holds it briefly. */
static void lock_first_byte(void)
{
	struct timespec pause = {0, 1000000};
	for (int i = 0; i < LOCK_TRIES && gl_record_lock(gl_self.fd, F_WRLCK, gl_slot_offset((uint32_t)gl_self.slot)) != 0; i++)
		(void)gl_syscall(SYS_nanosleep, &pause, NULL);
}

void gl_alive_keep(void)
{
	uint64_t second = gl_slot_offset((uint32_t)gl_self.slot) + 1;
	int apart = open_apart(gl_self.fd);
	if (apart >= 0) {
		(void)gl_record_lock(gl_self.fd, F_UNLCK, second); /* it would conflict with the other lock */
		(void)lock_lastingly(apart, second);
		gl_close(apart); /* drops this process's record locks on the file */
	}
	lock_first_byte();
	(void)gl_record_lock(gl_self.fd, F_UNLCK, 0);
}

bool gl_alive_reopen(const char *path)
{
	int fd = gl_open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
	if (fd < 0)
		return false;
	int high = check(fd) == 0 ? gl_dup_high(fd) : -1;
	gl_close(fd);
	if (high < 0)
		return false;
	gl_self.fd = high; /* the program uses the old number now */
	lock_first_byte();
	return true;
}
