/* SPDX-License-Identifier: Apache-2.0
 *
 * The name of the tenant's segment in /dev/shm, and reasons why a file of that name cannot be used.
 */
#ifndef GL_NAME_H
#define GL_NAME_H

#include "state/state.h"

enum { GL_SEGMENT_PATH_BYTES = 128 };

/* The tenant named by the daemon; NULL if this process has not registered with one. */
static inline const char *gl_segment_daemon_tenant(void)
{
	return gl_self.daemon.registered ? gl_self.daemon.tenant : NULL;
}

#pragma GCC visibility push(hidden)

/* Writes the path of the segment that this process is to join.  0 or negative errno.  Not for a process that has the
 * segment open: the function closes a descriptor of the file, which would drop the process's locks. */
int gl_segment_path(char out[GL_SEGMENT_PATH_BYTES]);
/* The tenant's name in such a path. */
const char *gl_segment_path_tenant(const char *path);
/* 0 if the file can be a segment of this process: a regular one, of its user or root.  Else -EPERM, or negative errno. */
int gl_segment_check_owner(int fd);

#pragma GCC visibility pop

#endif
