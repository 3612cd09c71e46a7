/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of the tenant's segment: opened or made, mapped, given room.
 */
#ifndef GL_FILE_H
#define GL_FILE_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Opens the file that the daemon has passed, or the one at the path.  Creates the latter if necessary, unless a daemon
 * makes it.  A descriptor or negative errno. */
int gl_segment_file_open(const char *path);
/* True if the file has lost its name since it was opened: `gpulimit run` removes its tenant's segment at the end. */
bool gl_segment_file_removed(int fd);
/* Takes the lock on byte 0, which serialises making the segment, joining it and adding devices.  0 or negative errno. */
int gl_segment_file_lock(int fd);
/* Maps the file as gl_self.usage.  Initialises it if no living process uses it.  A daemon's file is kept as it is,
 * because the time that the daemon grants is counted against the time spent there.  The caller holds the lock.  0 or
 * negative errno. */
int gl_segment_file_map(int fd, const char *path);
/* Reserves memory for a part of the file: if /dev/shm is full, the first access would raise SIGBUS.  If the kernel
 * lacks the call, that risk remains.  0 or negative errno. */
int gl_segment_file_room(int fd, uint64_t offset, uint64_t bytes);

#pragma GCC visibility pop

#endif
