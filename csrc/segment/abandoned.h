/* SPDX-License-Identifier: Apache-2.0
 *
 * Segments that the dead have left.  Without a daemon no process outlives its tenant to remove its segment, so the next
 * process that starts does, whatever its tenant.  It removes only what belongs to its user, was made by this library,
 * and is under its set-up lock, with no process in it.  A process that is about to join looks under that lock whether
 * the file still has its name.
 *
 * The last figures of a tenant can be read for a few seconds after its end, unless many tenants have ended.
 */
#ifndef GL_ABANDONED_H
#define GL_ABANDONED_H

#pragma GCC visibility push(hidden)

/* Marks a file in which no process was found; a process that joins takes it off. */
enum { GL_DEAD_MODE = 0100 };
/* Only for a process that is in no segment: to close one drops the locks on it. */
void gl_abandoned_remove(void);

#pragma GCC visibility pop

#endif
