/* SPDX-License-Identifier: Apache-2.0
 *
 * How a process shows that it lives: two locks on the first bytes of its slot.
 *
 * The first byte has a record lock of the process: the kernel tells the pid of its holder.  A program that closes every
 * descriptor it finds, as those do that become daemons, loses it.  The second byte has a lock of an open file
 * description that only a mapping keeps, so that closing descriptors leaves it; it goes with the mapping, at exec and
 * exit.  Forked children do not get the mapping.  A reaper takes both bytes or none.  Where the file cannot be opened
 * a second time, or before Linux 3.15, there is the first lock alone.
 */
#ifndef GL_ALIVE_H
#define GL_ALIVE_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* The file that gl_self.fd is of from now on. */
int gl_alive_remember(int fd); /* 0 or negative errno */
/* Takes the lasting lock on gl_self's slot, whose bytes gl_slot_lock has locked.  All of this process's other record
 * locks on the file are dropped, but for that on the slot's first byte. */
void gl_alive_keep(void);
/* 0: gl_self.fd is still the segment's; -EBADF: not; or negative errno.  A program that closes all it finds may since have opened something else under the
 * number, and a lock on that says nothing about who lives. */
int gl_alive_check_file(void);
/* Opens the segment again after the program has closed it, if the file at the path is the one: true if it is. */
bool gl_alive_reopen(const char *path);

#pragma GCC visibility pop

#endif
