/* SPDX-License-Identifier: Apache-2.0
 *
 * Two locks on the first bytes of a slot show that its process is alive.
 *
 * The first byte has a record lock of the process, whose holder's pid the kernel reports.  A program that closes every
 * open descriptor, as daemons do at their start, loses that lock.  The second byte has a lock of an open file
 * description that only a mapping keeps, so that closing descriptors leaves it; it goes with the mapping, at exec and
 * exit.  Forked children do not get the mapping.  A reaper takes both bytes or none.  If the file cannot be opened a
 * second time, or before Linux 3.15, there is only the first lock.
 */
#ifndef GL_ALIVE_H
#define GL_ALIVE_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* Records the file that gl_self.fd refers to from now on. */
int gl_alive_remember(int fd); /* 0 or negative errno */
/* Takes the lock on the second byte of gl_self's slot; gl_slot_lock has locked both bytes before.  Drops all other
 * record locks of this process on the file, except for the one on the slot's first byte. */
void gl_alive_keep(void);
/* 0: gl_self.fd is still the segment's; -EBADF: it is not; or negative errno.  A program that closes all descriptors
 * may have opened another file under the number, and locks on that tell nothing about slots. */
int gl_alive_check_file(void);
/* Opens the segment again after the program has closed it.  True if the file at the path is still the same one. */
bool gl_alive_reopen(const char *path);

#pragma GCC visibility pop

#endif
