/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves a file to a path where another file may be, in one step.
 */
#ifndef GL_NODE_REPLACE_H
#define GL_NODE_REPLACE_H

/* cffi: begin */
/* Renames `from` to `to`, both absolute.  exchange 0: only if `to` does not exist, else -EEXIST.  exchange 1: swaps the
 * two files, of whatever type.  0 or negative errno; -EINVAL or -ENOSYS: the kernel cannot do it. */
int gl_node_rename(const char *from, const char *to, int exchange);
/* cffi: end */

#endif
