/* SPDX-License-Identifier: Apache-2.0 */
#include "segment/name.h"

#include <string.h>
#include <sys/stat.h>

#include "segment/segment.h"
#include "segment/slots.h"

#define PREFIX GL_SHM_DIRECTORY GL_USAGE_PREFIX

static void write_path(const char *tenant, char out[GL_SEGMENT_PATH_BYTES])
{
	size_t at = sizeof PREFIX - 1;
	memcpy(out, PREFIX, at);
	for (; *tenant && at + 1 < GL_SEGMENT_PATH_BYTES; tenant++)
		out[at++] = *tenant;
	out[at] = 0;
}

const char *gl_segment_path_tenant(const char *path)
{
	return path + sizeof PREFIX - 1;
}

int gl_segment_check_owner(int fd)
{
	struct stat st;
	uint32_t me = (uint32_t)gl_syscall(SYS_geteuid);
	int r = (int)gl_syscall(SYS_fstat, fd, &st);
	return r == 0 && (!S_ISREG(st.st_mode) || (st.st_uid != me && st.st_uid != 0)) ? -EPERM : r;
}

static void append_user(char path[GL_SEGMENT_PATH_BYTES])
{
	uint64_t rest = (uint64_t)gl_syscall(SYS_geteuid);
	char digits[20];
	size_t at = strlen(path), n = 0;
	do
		digits[n++] = (char)('0' + rest % 10);
	while (rest /= 10);
	path[at++] = GL_USER_MARK;
	while (n)
		path[at++] = digits[--n];
	path[at] = 0;
}

enum name_state { NAME_FREE, NAME_OWN, NAME_INHABITED, NAME_FOREIGN };

/* Returns the name_state of a path, or negative errno if it cannot be determined.  A call that fails for another reason
 * must not be taken for a foreign file: the tenant would get a second segment, and its quota twice. */
static int state_of_name(const char *path)
{
	int fd = gl_open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0), r = fd;
	if (fd >= 0) {
		r = gl_segment_check_owner(fd);
		if (r == 0)
			r = gl_slots_inhabited(fd);
		gl_close(fd);
	}
	switch (r) {
	case 0: return NAME_OWN;
	case 1: return NAME_INHABITED;
	case -ENOENT: return NAME_FREE;
	case -EACCES: case -EPERM: case -ELOOP: case -EISDIR: case -ENXIO: case -ENODEV: return NAME_FOREIGN;
	default: return r;
	}
}

/* Names are per user.  If another user's segment, or any other file, has the plain name, this user's segment has one
 * with the uid.  The choice does not change while processes live in the segment. */
static int choose_name(char path[GL_SEGMENT_PATH_BYTES])
{
	char own[GL_SEGMENT_PATH_BYTES];
	memcpy(own, path, sizeof own);
	append_user(own);
	int with_number = state_of_name(own);
	int plain = with_number < 0 || with_number == NAME_INHABITED ? NAME_FREE : state_of_name(path);
	if (with_number == NAME_INHABITED || plain == NAME_FOREIGN)
		memcpy(path, own, sizeof own);
	return with_number < 0 ? with_number : plain < 0 ? plain : 0;
}

int gl_segment_path(char out[GL_SEGMENT_PATH_BYTES])
{
	char automatic[GL_TENANT_NAME_BYTES] = "";
	const char *daemons = gl_segment_daemon_tenant(), *tenant = daemons ? daemons : gl_self.quota.tenant;
	int r = 0;
	if (!*tenant) {
		r = gl_default_tenant(automatic);
		tenant = automatic;
	}
	write_path(tenant, out);
	if (r == 0 && !daemons)
		r = choose_name(out);
	return r;
}

bool gl_segment_exists(void)
{
	char path[GL_SEGMENT_PATH_BYTES];
	if (gl_segment_path(path) != 0)
		return true; /* joining it will report the reason */
	int fd = gl_open(path, O_RDWR | O_NOFOLLOW, 0);
	if (fd < 0)
		return fd == -EMFILE || fd == -ENFILE;
	bool found = gl_slots_inhabited(fd) != 0;
	gl_close(fd);
	return found;
}
