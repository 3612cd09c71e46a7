/* SPDX-License-Identifier: Apache-2.0
 *
 * Accepts and refuses many connections at a time, so that a flood of them costs the daemon only the system calls.
 */
#ifndef GL_NODE_ARRIVALS_H
#define GL_NODE_ARRIVALS_H

#include <stdint.h>

/* cffi: begin */
#define GL_NO_USER 0xffffffffu   /* not of this machine, or closed already */

struct gl_arrival {
	int32_t fd;              /* non-blocking, closed on exec */
	uint32_t pid, uid, gid;  /* of the process that connected; over TCP 0, GL_NO_USER, 0 */
};

/* Accepts pending connections at a non-blocking listening socket, up to `most`.  Returns how many; or negative errno if
 * none was accepted, for another reason than an empty queue. */
int gl_accept_many(int listener, struct gl_arrival *to, uint32_t most);
/* Finds the users of connections over TCP by a socket of NETLINK_SOCK_DIAG.  Negative errno: that socket is no longer
 * usable. */
int gl_owners_of(int link, struct gl_arrival *of, uint32_t count);
#define GL_MAX_TOLD 16
/* Closes connections.  The first GL_MAX_TOLD receive an answer before, without waiting.  The others are reset, because
 * an answer costs more than all other steps. */
void gl_turn_away(const int32_t *fds, uint32_t count, const char *answer, uint32_t size);
/* cffi: end */

#endif
