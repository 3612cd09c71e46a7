/* SPDX-License-Identifier: Apache-2.0 */
#include "segment/file.h"

#include <string.h>
#include <sys/stat.h>

#include "segment/abandoned.h"
#include "segment/header.h"
#include "segment/name.h"
#include "segment/slots.h"

enum { SET_UP_TRIES = 5000 /* of 1 ms */ };

int gl_segment_file_lock(int fd)
{
	struct timespec pause = {0, 1000000};
	for (int i = 0; i < SET_UP_TRIES; i++) {
		int r = gl_record_lock(fd, F_WRLCK, 0);
		if (r != -EAGAIN && r != -EACCES)
			return r;
		(void)gl_syscall(SYS_nanosleep, &pause, NULL);
	}
	return -ETIMEDOUT;
}

bool gl_segment_file_removed(int fd)
{
	struct stat st;
	return gl_syscall(SYS_fstat, fd, &st) == 0 && st.st_nlink == 0;
}

/* Takes the file that the daemon passed at the registration; it need not be in this process's /dev/shm, nor belong to
 * this user.  -1: none, or it was taken before. */
static int take_handed_over(void)
{
	int fd = gl_self.daemon.registered ? gl_self.daemon.usage_fd : -1;
	gl_self.daemon.usage_fd = -1;
	return fd;
}

int gl_segment_file_open(const char *path)
{
	int given = take_handed_over();
	if (given >= 0)
		return given;
	/* Without O_CREAT first: in a sticky directory, fs.protected_regular refuses O_CREAT on a file of another
	 * user. */
	int fd = gl_open(path, O_RDWR | O_NOFOLLOW, 0);
	if (fd == -ENOENT && !gl_segment_daemon_tenant())
		fd = gl_open(path, O_RDWR | O_NOFOLLOW | O_CREAT, 0600);
	if (fd < 0)
		return fd;
	int r = gl_segment_check_owner(fd);
	if (r != 0) {
		gl_close(fd);
		return r;
	}
	return gl_moved_up(fd);
}

static void write_header(struct gl_usage *usage, const char *path)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	uint64_t created_ns = (uint64_t)now.tv_sec * GL_SECOND_NS + (uint64_t)now.tv_nsec;
	gl_header_begin(&usage->header, GL_USAGE_MAGIC, sizeof *usage, gl_segment_path_tenant(path), created_ns);
}

/* A tenant without living processes begins with empty accounts, and with the limits of the first process.  The file is
 * not truncated, since a reader may have it mapped. */
static void clear(int fd, struct gl_usage *usage)
{
	const long punch_hole_keep_size = 3;
	if (gl_syscall(SYS_fallocate, fd, punch_hole_keep_size, 0L, (long)sizeof *usage) != 0)
		memset(usage, 0, sizeof *usage);
}

int gl_segment_file_room(int fd, uint64_t offset, uint64_t bytes)
{
	const long keep_size = 1;
	int r;
	do
		r = (int)gl_syscall(SYS_fallocate, fd, keep_size, (long)offset, (long)bytes);
	while (r == -EINTR);
	return r == -EOPNOTSUPP || r == -ENOSYS || r == -EPERM ? 0 : r;
}

static int begin(int fd, const char *path, const struct stat *st)
{
	clear(fd, gl_self.usage);
	int r = gl_segment_file_room(fd, 0, gl_slot_offset(0));
	if (st->st_mode & GL_DEAD_MODE)
		(void)gl_syscall(SYS_fchmod, fd, 0600);
	if (r == 0)
		write_header(gl_self.usage, path);
	return r;
}

int gl_segment_file_map(int fd, const char *path)
{
	struct stat st;
	int r = (int)gl_syscall(SYS_fstat, fd, &st), living = gl_segment_daemon_tenant() ? 1 : gl_slots_inhabited(fd);
	if (r != 0 || living < 0)
		return r ? r : living;
	bool alone = !living;
	if (!alone && st.st_size != sizeof(struct gl_usage))
		return -EPROTO;
	if (st.st_size != sizeof(struct gl_usage))
		r = (int)gl_syscall(SYS_ftruncate, fd, (long)sizeof(struct gl_usage));
	if (r != 0)
		return r;
	void *at = mmap(NULL, sizeof(struct gl_usage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	gl_self.usage = at;
	if (alone)
		r = begin(fd, path, &st);
	if (r == 0 && gl_header_is_valid(&gl_self.usage->header, GL_USAGE_MAGIC, sizeof(struct gl_usage)))
		return 0;
	munmap(at, sizeof(struct gl_usage));
	gl_self.usage = NULL;
	return r ? r : -EPROTO;
}
