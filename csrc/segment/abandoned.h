/* SPDX-License-Identifier: Apache-2.0
 *
 * Segments without living processes.  Without a daemon no process outlives its tenant to remove the segment.  So the
 * next process that starts removes it, whatever its own tenant.  It removes only files that belong to its user, were
 * made by this library, and have no process in them while it holds their set-up lock.  A process that is about to join
 * checks under that lock that the file still has its name.
 *
 * The last figures of a tenant can be read for a few seconds after its end, unless many tenants have ended.
 */
#ifndef GL_ABANDONED_H
#define GL_ABANDONED_H

#pragma GCC visibility push(hidden)

/* Marks a file in which no process was found; a process that joins removes the mark. */
enum { GL_DEAD_MODE = 0100 };
/* Only for a process that has joined no segment: closing a segment's file would drop the process's locks on it. */
void gl_abandoned_remove(void);

#pragma GCC visibility pop

#endif
