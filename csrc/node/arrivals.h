/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections that come in, many at a time: one that floods the daemon with them is turned away at the cost of the
 * system calls alone.
 */
#ifndef GL_NODE_ARRIVALS_H
#define GL_NODE_ARRIVALS_H

#include <stdint.h>

/* cffi: begin */
#define GL_NO_USER 0xffffffffu   /* not of this machine, or gone */

struct gl_arrival {
	int32_t fd;              /* does not block, closed on exec */
	uint32_t pid, uid, gid;  /* of the process that connected; over TCP 0, GL_NO_USER, 0 */
};

/* Accepts what waits at a listening socket that does not block, up to most: how many, or negative errno if there are
 * none for another reason than that none waits. */
int gl_accept_many(int listener, struct gl_arrival *to, uint32_t most);
/* Finds the users of connections over TCP by a socket of NETLINK_SOCK_DIAG.  Negative errno: that socket is of no use
 * any more. */
int gl_owners_of(int link, struct gl_arrival *of, uint32_t count);
#define GL_MAX_TOLD 16
/* Closes connections.  The first GL_MAX_TOLD are sent an answer before, without waiting, the others are reset: to say
 * it costs more than all the rest. */
void gl_turn_away(const int32_t *fds, uint32_t count, const char *answer, uint32_t size);
/* cffi: end */

#endif
