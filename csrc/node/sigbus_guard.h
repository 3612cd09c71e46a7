/* SPDX-License-Identifier: Apache-2.0
 *
 * Touching memory whose file another process may cut short at any time: the access then raises SIGBUS, which would end
 * the daemon.  Work done through gl_guarded comes back with -EFAULT instead.
 */
#ifndef GL_NODE_SIGBUS_GUARD_H
#define GL_NODE_SIGBUS_GUARD_H

/* Returns what work(argument) returns, or -EFAULT if it touched memory that is gone.  Work must hold no lock and no
 * resource, since it may end at any access, and must not call gl_guarded. */
int gl_guarded(int (*work)(void *argument), void *argument);

#endif
