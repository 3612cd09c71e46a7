/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of the tenant's segment: opened or made, mapped, given room.
 */
#ifndef GL_FILE_H
#define GL_FILE_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Opens the file that the daemon handed over, or the one at the path, which is made if need be and no daemon makes it.
 * A descriptor or negative errno. */
int gl_segment_file_open(const char *path);
/* The file has lost its name since it was opened: `gpulimit run` removes the segment of what it ran. */
bool gl_segment_file_removed(int fd);
/* Takes the lock on byte 0, which serialises making the segment, joining it and adding devices.  0 or negative errno. */
int gl_segment_file_lock(int fd);
/* Maps the file as gl_self.usage: made or remade if no living process uses it.  A daemon's stays as it is, since the
 * time that it has granted is counted against the time spent there.  The caller holds the lock.  0 or negative errno. */
int gl_segment_file_map(int fd, const char *path);
/* Reserves memory for a part of the file: where /dev/shm is full, the first touch would be a SIGBUS.  Where the call
 * itself is not to be had, that has to be risked.  0 or negative errno. */
int gl_segment_file_room(int fd, uint64_t offset, uint64_t bytes);

#pragma GCC visibility pop

#endif
