/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "node/arrivals.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "base/sys.h"

enum { ANSWER_BYTES = 4096 };

/* The client hung up while its connection waited. */
static int is_gone(int error)
{
	return error == ECONNABORTED || error == EPROTO || error == EPERM || error == EINTR;
}

static int is_unix(int listener)
{
	int domain = 0;
	socklen_t size = sizeof domain;
	return getsockopt(listener, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

int gl_accept_many(int listener, struct gl_arrival *to, uint32_t most)
{
	int unix_socket = is_unix(listener), error = 0;
	uint32_t count = 0;
	for (uint32_t tries = 0; count < most && tries < most; tries++) {
		int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0) {
			error = errno;
			if (is_gone(error))
				continue;
			break;
		}
		struct ucred from = {0, GL_NO_USER, 0};
		socklen_t size = sizeof from;
		if (unix_socket && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &from, &size)) {
			gl_close(fd);
			continue;
		}
		to[count++] = (struct gl_arrival){fd, (uint32_t)from.pid, from.uid, from.gid};
	}
	return count || error == EAGAIN || error == EWOULDBLOCK || is_gone(error) ? (int)count : -error;
}

/* ---- users of TCP connections ---- */

struct ends {
	struct sockaddr_storage peer, own;
};

static void put_end(const struct sockaddr_storage *from, __be32 *address, __be16 *port)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
	*port = from->ss_family == AF_INET ? v4->sin_port : v6->sin6_port;
	if (from->ss_family == AF_INET)
		memcpy(address, &v4->sin_addr, sizeof v4->sin_addr);
	else
		memcpy(address, &v6->sin6_addr, sizeof v6->sin6_addr);
}

static int ends_of(int fd, struct ends *to)
{
	socklen_t peer = sizeof to->peer, own = sizeof to->own;
	if (getpeername(fd, (struct sockaddr *)&to->peer, &peer) || getsockname(fd, (struct sockaddr *)&to->own, &own))
		return -errno;
	return to->peer.ss_family == AF_INET || to->peer.ss_family == AF_INET6 ? 0 : -EAFNOSUPPORT;
}

/* The kernel answers during the request: the answer is there when sending returns. */
static int owner_of(int link, const struct ends *ends, uint32_t number, uint32_t *uid)
{
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 body;
	} ask = {{sizeof ask, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, number, 0}, {0}};
	ask.body.sdiag_family = (uint8_t)ends->peer.ss_family;
	ask.body.sdiag_protocol = IPPROTO_TCP;
	ask.body.idiag_states = ~0u;
	put_end(&ends->peer, ask.body.id.idiag_src, &ask.body.id.idiag_sport);
	put_end(&ends->own, ask.body.id.idiag_dst, &ask.body.id.idiag_dport);
	ask.body.id.idiag_cookie[0] = ask.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;

	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	if (sendto(link, &ask, sizeof ask, MSG_DONTWAIT, (struct sockaddr *)&kernel, sizeof kernel) < 0)
		return -errno;
	union {
		struct nlmsghdr head;
		char bytes[ANSWER_BYTES];
	} got;
	ssize_t size = recv(link, &got, sizeof got, MSG_DONTWAIT);
	if (size < 0)
		return -errno;
	if ((size_t)size < sizeof got.head || got.head.nlmsg_seq != number)
		return -EPROTO;
	struct inet_diag_msg said;
	if (got.head.nlmsg_type == SOCK_DIAG_BY_FAMILY && (size_t)size >= NLMSG_LENGTH(sizeof said)) {
		memcpy(&said, NLMSG_DATA(&got.head), sizeof said);
		if (said.idiag_inode) /* a connection that is closed already has user 0 */
			*uid = said.idiag_uid;
	}
	return 0;
}

int gl_owners_of(int link, struct gl_arrival *of, uint32_t count)
{
	static uint32_t asked;
	for (uint32_t i = 0; i < count; i++) {
		struct ends ends;
		if (ends_of(of[i].fd, &ends))
			continue;
		int r = owner_of(link, &ends, gl_add_relaxed(&asked, 1), &of[i].uid);
		if (r)
			return r;
	}
	return 0;
}

/* ---- refusals ---- */

void gl_turn_away(const int32_t *fds, uint32_t count, const char *answer, uint32_t size)
{
	const struct linger at_once = {1, 0};
	for (uint32_t i = 0; i < count; i++) {
		if (i < GL_MAX_TOLD)
			(void)gl_syscall(SYS_sendto, fds[i], answer, size, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
		else
			(void)setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
		gl_close(fds[i]);
	}
}
