/* SPDX-License-Identifier: Apache-2.0 */
#include "segment/abandoned.h"

#include <string.h>
#include <sys/stat.h>

#include "segment/name.h"
#include "segment/slots.h"

enum { MAX_ENTRIES = 1 << 16, MAX_LEFT = 16, GRACE_S = 3 };

/* The kernel's struct linux_dirent64. */
struct entry {
	uint64_t inode, next;
	uint16_t length;
	uint8_t type;
	char name[];
};

struct sweep {
	uint32_t user;
	int64_t now_s;
	int looked_at, left;
};

/* The first slot names the pid namespace of its process, dead or alive.  A file that this library has not made does
 * not. */
static bool made_by_library(int fd)
{
	struct gl_header header;
	uint64_t space = 0;
	long at = (long)(gl_slot_offset(0) + offsetof(struct gl_slot, pid_namespace));
	return gl_syscall(SYS_pread64, fd, &header, sizeof header, 0L) == (long)sizeof header &&
	       header.magic == GL_USAGE_MAGIC && gl_syscall(SYS_pread64, fd, &space, sizeof space, at) == (long)sizeof space &&
	       space != 0;
}

/* True if any byte has a record lock: a process lives in the segment, is joining it, or has it open as its daemon. */
static bool in_use(int fd)
{
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0};
	return gl_syscall(SYS_fcntl, fd, F_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

/* True if the segment was marked unused long enough ago.  Marks it if it is not marked: by the file's mode and the time
 * of its last change. */
static bool is_long_dead(int fd, const struct stat *st, const struct sweep *s)
{
	if (st->st_mode & GL_DEAD_MODE)
		return s->now_s - st->st_mtim.tv_sec >= GRACE_S || s->now_s < st->st_mtim.tv_sec;
	(void)gl_syscall(SYS_utimensat, fd, NULL, NULL, 0);
	(void)gl_syscall(SYS_fchmod, fd, 0600 | GL_DEAD_MODE);
	return false;
}

static void look_at(int fd, const char *path, struct sweep *s)
{
	struct stat st;
	if (gl_record_lock(fd, F_WRLCK, 0) != 0)
		return;
	/* After the lock: no process joins from here on. */
	bool has_name = gl_syscall(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1;
	if (!has_name || st.st_uid != s->user || (st.st_mode & 077) || in_use(fd) || !made_by_library(fd))
		return;
	if (is_long_dead(fd, &st, s) || ++s->left > MAX_LEFT)
		(void)gl_syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

static void look_at_name(const char *name, struct sweep *s)
{
	char path[sizeof GL_SHM_DIRECTORY + 255] = GL_SHM_DIRECTORY;
	size_t length = strnlen(name, 256);
	if (strncmp(name, GL_USAGE_PREFIX, sizeof GL_USAGE_PREFIX - 1) != 0 || length > 255)
		return;
	memcpy(path + sizeof GL_SHM_DIRECTORY - 1, name, length);
	int fd = gl_open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
	if (fd < 0)
		return;
	look_at(fd, path, s);
	gl_close(fd); /* drops its lock too */
}

void gl_abandoned_remove(void)
{
	struct timespec now;
	_Alignas(struct entry) char room[4096];
	clock_gettime(CLOCK_REALTIME, &now);
	struct sweep s = {.user = (uint32_t)gl_syscall(SYS_geteuid), .now_s = now.tv_sec};
	int folder = gl_open(GL_SHM_DIRECTORY, O_RDONLY | O_DIRECTORY, 0);
	while (folder >= 0 && s.looked_at < MAX_ENTRIES) {
		long got = gl_syscall(SYS_getdents64, folder, room, sizeof room);
		if (got <= 0)
			break;
		for (long at = 0; at < got; s.looked_at++) {
			const struct entry *e = (const struct entry *)(const void *)(room + at);
			look_at_name(e->name, &s);
			at += e->length;
		}
	}
	if (folder >= 0)
		gl_close(folder);
}
