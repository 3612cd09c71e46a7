/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's address, from the first of these:
 *
 *   /usr/lib/gpulimit/daemon          a file that is mounted into a container with the library, read-only: its first
 *                                     line is the socket's path.  The environment is then ignored, and so is
 *                                     GPULIMIT_ON_LOSS
 *   GPULIMIT_SOCKET                   its socket
 *   the usual socket                  if it exists
 *   HYPERVISOR_IP, HYPERVISOR_PORT    TCP, on the same node; needs the token in GPULIMIT_TOKEN or in the file that
 *                                     GPULIMIT_TOKEN_FILE names
 *
 * If none is set, there is no daemon.  A setting that cannot be used is an error, never "no daemon".
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define NODE_FILE "/usr/lib/gpulimit/daemon"
#define DEFAULT_SOCKET "/run/gpulimit/hypervisor.sock"
#define REFUSED "every CUDA call of this process is refused"

static int socket_address(struct gl_address *to, const char *path, const char *where)
{
	struct gl_out out;
	gl_out_begin(&out, to->text, sizeof to->text);
	gl_out_text(&out, path);
	if (*path != '/' || out.full) {
		gl_log(GL_ERROR, "%s: \"%.120s\" is not an absolute path of at most 107 characters; " REFUSED, where, path);
		return GL_DAEMON_WRONG;
	}
	to->at.un.sun_family = AF_UNIX;
	memcpy(to->at.un.sun_path, to->text, sizeof to->text);
	to->size = sizeof to->at.un;
	return GL_DAEMON_THERE;
}

/* The address in the node's file, which takes precedence over the program's environment. */
static int address_by_node(struct gl_address *to)
{
	char text[160];
	int fd = gl_open(NODE_FILE, O_RDONLY | O_NONBLOCK | O_NOFOLLOW, 0);
	if (fd == -ENOENT || fd == -ENOTDIR)
		return GL_DAEMON_NONE;
	long n = fd < 0 ? fd : gl_syscall(SYS_read, fd, text, sizeof text - 1);
	if (fd >= 0)
		gl_close(fd);
	if (n < 0) {
		gl_log(GL_ERROR, NODE_FILE ": %s; " REFUSED, strerror((int)-n));
		return GL_DAEMON_WRONG;
	}
	text[n] = 0;
	text[strcspn(text, "\n")] = 0;
	to->by_node = true;
	return socket_address(to, text, NODE_FILE);
}

static bool parse_port(const char *text, uint16_t *port)
{
	unsigned int value = 0;
	const char *p = text;
	for (; *p >= '0' && *p <= '9' && value < 65536; p++)
		value = value * 10 + (unsigned int)(*p - '0');
	*port = (uint16_t)value;
	return p > text && !*p && value >= 1 && value < 65536;
}

static bool parse_ip(struct gl_address *to, const char *ip, uint16_t port)
{
	if (inet_pton(AF_INET, ip, &to->at.in.sin_addr) == 1) {
		to->at.in.sin_family = AF_INET;
		to->at.in.sin_port = htons(port);
		to->size = sizeof to->at.in;
		return true;
	}
	if (inet_pton(AF_INET6, ip, &to->at.in6.sin6_addr) != 1)
		return false;
	to->at.in6.sin6_family = AF_INET6;
	to->at.in6.sin6_port = htons(port);
	to->size = sizeof to->at.in6;
	return true;
}

/* ---- the token ---- */

static bool take_token(struct gl_address *to, const char *text, size_t length, const char *where)
{
	bool good = length >= GL_MIN_TOKEN_BYTES && length < sizeof to->token;
	for (size_t i = 0; i < length && good; i++)
		good = text[i] > ' ' && text[i] < 0x7f;
	if (good) {
		memcpy(to->token, text, length);
		to->token[length] = 0;
	} else {
		gl_log(GL_ERROR, "%.120s: a token is of 16 to 255 visible ASCII characters; " REFUSED, where);
	}
	return good;
}

static bool token_from_file(struct gl_address *to, const char *path)
{
	char text[sizeof to->token + 2];
	int fd = gl_open(path, O_RDONLY | O_NONBLOCK, 0);
	long n = fd < 0 ? fd : gl_syscall(SYS_read, fd, text, sizeof text);
	if (fd >= 0)
		gl_close(fd);
	if (n < 0) {
		gl_log(GL_ERROR, "GPULIMIT_TOKEN_FILE: %.120s: %s; " REFUSED, path, strerror((int)-n));
		return false;
	}
	while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' '))
		n--;
	return take_token(to, text, (size_t)n, "GPULIMIT_TOKEN_FILE");
}

static bool read_token(struct gl_address *to)
{
	const char *token = getenv("GPULIMIT_TOKEN"), *path = getenv("GPULIMIT_TOKEN_FILE");
	if (token && *token)
		return take_token(to, token, strlen(token), "GPULIMIT_TOKEN");
	if (path && *path)
		return token_from_file(to, path);
	gl_log(GL_ERROR, "HYPERVISOR_IP needs a token, in GPULIMIT_TOKEN or the file of GPULIMIT_TOKEN_FILE; " REFUSED);
	return false;
}

static int tcp_address(struct gl_address *to, const char *ip)
{
	const char *port = getenv("HYPERVISOR_PORT");
	struct gl_out out;
	uint16_t number;
	if (!port || !parse_port(port, &number) || !parse_ip(to, ip, number)) {
		gl_log(GL_ERROR, "HYPERVISOR_IP, HYPERVISOR_PORT: \"%.64s\", \"%.16s\" is not an IP address and a port; " REFUSED, ip,
		       port ? port : "");
		return GL_DAEMON_WRONG;
	}
	gl_out_begin(&out, to->text, sizeof to->text);
	gl_out_text(&out, ip);
	gl_out_text(&out, ", port ");
	gl_out_number(&out, number);
	return read_token(to) ? GL_DAEMON_THERE : GL_DAEMON_WRONG;
}

int gl_address_find(struct gl_address *to)
{
	const char *path = getenv("GPULIMIT_SOCKET"), *ip = getenv("HYPERVISOR_IP");
	memset(to, 0, sizeof *to);
	int said = address_by_node(to);
	if (said != GL_DAEMON_NONE)
		return said;
	if (path && *path)
		return socket_address(to, path, "GPULIMIT_SOCKET");
	if (gl_syscall(SYS_faccessat, AT_FDCWD, DEFAULT_SOCKET, F_OK) == 0)
		return socket_address(to, DEFAULT_SOCKET, DEFAULT_SOCKET);
	return ip && *ip ? tcp_address(to, ip) : GL_DAEMON_NONE;
}
