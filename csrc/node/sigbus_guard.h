/* SPDX-License-Identifier: Apache-2.0
 *
 * Access to memory whose file another process may truncate at any time.  Such an access raises SIGBUS, which would end
 * the daemon.  Inside gl_guarded it returns -EFAULT instead.
 */
#ifndef GL_NODE_SIGBUS_GUARD_H
#define GL_NODE_SIGBUS_GUARD_H

/* Returns work(argument), or -EFAULT if it accessed memory that is gone.  `work` must hold no lock and no resource,
 * since it may end at any access, and must not call gl_guarded. */
int gl_guarded(int (*work)(void *argument), void *argument);

#endif
