/* SPDX-License-Identifier: Apache-2.0
 *
 * One HTTP exchange with the daemon on a connection of its own.  It only blocks in ppoll, and always has a deadline.
 *
 * The descriptor shares the program's table, so it gets a high number.  Some programs close all descriptors and then
 * reuse the numbers.  So the descriptor is checked after every sleep and before it is closed.  If it no longer is our
 * socket, it is not touched.
 *
 * The daemon may pass files along with an interim answer.
 */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/sys.h"
#include "daemon/daemon.h"

#define TICK_NS GL_SECOND_NS
#define BUSY_NS 10000000 /* between tries while the daemon's queue of connections is full */

struct connection {
	int fd;
	uint64_t inode;
	uint64_t deadline_ns;
	bool (*tick)(void);
};

/* 0 or negative errno. */
static int inode_of(int fd, uint64_t *inode)
{
	struct stat st;
	int r = (int)gl_syscall(SYS_fstat, fd, &st);
	if (r == 0)
		*inode = S_ISSOCK(st.st_mode) ? (uint64_t)st.st_ino : 0;
	return r;
}

static bool still_ours(const struct connection *c)
{
	uint64_t inode = 0;
	return c->inode && inode_of(c->fd, &inode) == 0 && inode == c->inode;
}

/* Sleeps until the socket is ready.  0, -ETIMEDOUT, -ECANCELED, or -EBADF: the program has closed it. */
static int sleep_until(struct connection *c, short events)
{
	for (;;) {
		uint64_t now = gl_now_ns();
		if (now >= c->deadline_ns)
			return -ETIMEDOUT;
		uint64_t ns = c->deadline_ns - now;
		if (c->tick && ns > TICK_NS)
			ns = TICK_NS;
		struct timespec t = gl_timespec(ns);
		struct pollfd p = {c->fd, events, 0};
		long r = gl_syscall(SYS_ppoll, &p, 1, &t, NULL, 0);
		if (!still_ours(c))
			return -EBADF;
		if (r > 0)
			return 0;
		if (r < 0 && r != -EINTR)
			return (int)r;
		if (c->tick && !c->tick())
			return -ECANCELED;
	}
}

static void hang_up(struct connection *c)
{
	if (!still_ours(c))
		return;
	/* A forked child may hold a copy of the descriptor; shutdown lets the daemon see the end all the same. */
	(void)gl_syscall(SYS_shutdown, c->fd, SHUT_RDWR);
	gl_close(c->fd);
}

static int open_socket(struct connection *c, int family)
{
	c->fd = (int)gl_syscall(SYS_socket, family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->fd < 0)
		return c->fd;
	c->fd = gl_moved_up(c->fd);
	int r = inode_of(c->fd, &c->inode);
	if (r != 0)
		gl_close(c->fd); /* the program has not run since the socket was made */
	return r;
}

/* TCP continues by itself; the result is known when the socket becomes writable. */
static int connected(struct connection *c)
{
	int error = 0;
	socklen_t size = sizeof error;
	int r = sleep_until(c, POLLOUT);
	if (r == 0)
		r = (int)gl_syscall(SYS_getsockopt, c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
	return r ? r : -error;
}

static int connect_until(struct connection *c, const struct gl_address *to)
{
	long r;
	/* A Unix socket whose queue is full returns EAGAIN and does not continue by itself.  Otherwise it is connected
	 * at once. */
	while ((r = gl_syscall(SYS_connect, c->fd, &to->at, to->size)) == -EAGAIN && gl_now_ns() < c->deadline_ns) {
		struct timespec nap = {0, BUSY_NS + (long)(gl_now_ns() % BUSY_NS)};
		(void)gl_syscall(SYS_nanosleep, &nap, NULL);
	}
	return r == -EAGAIN ? -ETIMEDOUT : r == -EINPROGRESS ? connected(c) : (int)r;
}

static int send_all(struct connection *c, const char *data, size_t size)
{
	while (size) {
		long n = gl_syscall(SYS_sendto, c->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT, NULL, 0);
		if (n > 0) {
			data += n;
			size -= (size_t)n;
			continue;
		}
		int r = n == -EAGAIN ? sleep_until(c, POLLOUT) : n == -EINTR ? 0 : (int)n;
		if (r)
			return r;
	}
	return 0;
}

/* ---- files ---- */

void gl_files_close(struct gl_files *files)
{
	for (int i = 0; i < GL_FILES; i++) {
		if (files->fd[i] >= 0)
			gl_close(files->fd[i]);
		files->fd[i] = -1;
	}
}

static void take_files(const struct msghdr *message, struct gl_files *files)
{
	const struct cmsghdr *c = CMSG_FIRSTHDR(message);
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return;
	gl_files_close(files);
	size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	for (size_t i = 0; i < n && i < (size_t)files->wanted; i++) {
		int fd;
		memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
		files->fd[i] = gl_moved_up(fd);
	}
}

static long receive_some(struct connection *c, char *data, size_t size, struct gl_files *files)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(GL_FILES * sizeof(int))];
	} control;
	struct iovec part = {data, size};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (files && files->wanted) {
		message.msg_control = &control;
		/* Not CMSG_SPACE, whose padding would have room for one descriptor too many. */
		message.msg_controllen = CMSG_LEN((size_t)files->wanted * sizeof(int));
	}
	long n = gl_syscall(SYS_recvmsg, c->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n >= 0 && files && files->wanted)
		take_files(&message, files);
	return n;
}

static int receive(struct connection *c, struct gl_answer *answer, struct gl_files *files)
{
	char data[1024];
	for (;;) {
		int r = sleep_until(c, POLLIN);
		if (r)
			return r;
		long n = receive_some(c, data, sizeof data, files);
		if (n == -EAGAIN || n == -EINTR)
			continue;
		if (n < 0)
			return (int)n;
		if (n == 0)
			return gl_answer_end(answer) == 1 ? 0 : -ECONNRESET;
		r = gl_answer_feed(answer, data, (size_t)n);
		if (r)
			return r == 1 ? 0 : -EPROTO;
	}
}

int gl_http_ask(const struct gl_address *to, const char *request, size_t length, uint64_t deadline_ns, bool (*tick)(void),
		struct gl_answer *answer, struct gl_files *files)
{
	struct connection c = {.deadline_ns = deadline_ns, .tick = tick};
	gl_answer_begin(answer);
	int r = open_socket(&c, to->at.un.sun_family);
	if (r)
		return r;
	r = connect_until(&c, to);
	if (r == 0)
		r = send_all(&c, request, length);
	/* The daemon may have answered without reading the whole request, and hung up. */
	if (r == 0 || r == -EPIPE || r == -ECONNRESET)
		r = receive(&c, answer, files);
	hang_up(&c);
	return r;
}
