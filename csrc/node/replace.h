/* SPDX-License-Identifier: Apache-2.0
 *
 * Putting a file where another one may be, in one step.
 */
#ifndef GL_NODE_REPLACE_H
#define GL_NODE_REPLACE_H

/* cffi: begin */
/* Renames from to to, both absolute.  exchange 0: only where nothing is at to, else -EEXIST; exchange 1: what is at
 * to, whatever it is, is at from afterwards.  0 or negative errno; -EINVAL or -ENOSYS: the kernel cannot do it. */
int gl_node_rename(const char *from, const char *to, int exchange);
/* cffi: end */

#endif
