/* SPDX-License-Identifier: Apache-2.0
 *
 * The identity of this process, read from /proc: for its slot, and for its default tenant.
 */
#include <string.h>

#include "shim.h"

/* Bytes read, 0 if there is no such file, or negative errno. */
static long read_file(const char *path, char *out, size_t size)
{
	size_t got = 0;
	long n = 0;
	int fd = gl_open(path, O_RDONLY, 0);
	while (fd >= 0 && got + 1 < size) {
		n = gl_syscall(SYS_read, fd, out + got, size - 1 - got);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			break;
		got += (size_t)n;
	}
	if (fd >= 0)
		gl_close(fd);
	out[got] = 0;
	return n < 0 ? n : fd >= 0 || fd == -ENOENT ? (long)got : fd;
}

static uint64_t number(const char *text)
{
	uint64_t n = 0;
	while (*text >= '0' && *text <= '9')
		n = n * 10 + (uint64_t)(*text++ - '0');
	return n;
}

/* The inode in "pid:[4026531836]"; 0 where the kernel has no such namespaces.  0 or negative errno. */
static int namespace_inode(const char *path, uint64_t *inode)
{
	char link[64] = "";
	long r = gl_syscall(SYS_readlinkat, AT_FDCWD, path, link, sizeof link - 1);
	const char *bracket = strchr(link, '[');
	*inode = bracket ? number(bracket + 1) : 0;
	return r < 0 && r != -ENOENT ? (int)r : 0;
}

/* Field 22, after the process name, which may contain any character. */
static uint64_t start_ticks_in(const char *stat)
{
	const char *close = strrchr(stat, ')');
	for (int field = 2; close && *close && field < 22; close++)
		field += *close == ' ';
	return close ? number(close) : 0;
}

uint64_t gl_identity_start_ticks(uint32_t pid)
{
	char path[] = "/proc/4294967295/stat", digits[10], stat[1024];
	size_t n = 0, at = sizeof "/proc/" - 1;
	do
		digits[n++] = (char)('0' + pid % 10);
	while (pid /= 10);
	while (n)
		path[at++] = digits[--n];
	memcpy(path + at, "/stat", sizeof "/stat");
	return read_file(path, stat, sizeof stat) > 0 ? start_ticks_in(stat) : 0;
}

struct gl_identity gl_identity_read(void)
{
	struct gl_identity id = {0};
	char stat[1024];
	(void)read_file("/proc/self/stat", stat, sizeof stat);
	const char *open = strchr(stat, '('), *close = strrchr(stat, ')'); /* the name may contain both */
	if (open && close && close > open) {
		size_t length = (size_t)(close - open - 1);
		memcpy(id.name, open + 1, length < sizeof id.name - 1 ? length : sizeof id.name - 1);
	}
	id.start_ticks = start_ticks_in(stat);
	(void)namespace_inode("/proc/self/ns/pid", &id.pid_namespace);
	return id;
}

static uint64_t hash(uint64_t h, const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++)
		h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
	return h;
}

/* "auto-<uid>-<hash>": the processes of one user in one container, service or login session, which the kernel
 * tells by their cgroup.  Children stay in it whatever they do: exec, setsid, a cleaned environment. */
int gl_default_tenant(char out[GL_TENANT_NAME_BYTES])
{
	char cgroup[4096], *at = out;
	long length = read_file("/proc/self/cgroup", cgroup, sizeof cgroup);
	uint64_t space;
	int r = namespace_inode("/proc/self/ns/cgroup", &space);
	if (length < 0 || r != 0) /* for example without free descriptors: a wrong guess would use another tenant's quota */
		return length < 0 ? (int)length : r;
	uint64_t uid = (uint64_t)gl_syscall(SYS_geteuid);
	uint64_t h = hash(hash(UINT64_C(0xcbf29ce484222325), cgroup, (size_t)length), (const char *)&space, sizeof space);
	char digits[20];
	int n = 0;
	memcpy(at, "auto-", 5);
	at += 5;
	do
		digits[n++] = (char)('0' + uid % 10);
	while (uid /= 10);
	while (n)
		*at++ = digits[--n];
	*at++ = '-';
	for (int i = 60; i >= 0; i -= 4)
		*at++ = "0123456789abcdef"[(h >> i) & 15];
	*at = 0;
	return 0;
}
