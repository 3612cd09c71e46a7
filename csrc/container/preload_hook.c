/* SPDX-License-Identifier: Apache-2.0
 *
 * An OCI hook, createContainer: merges an image's own /etc/ld.so.preload with ours.
 *
 * Our file is mounted over the image's, which would hide the image's libraries.  The runtime starts this program in the
 * container's mount namespace, before the container has its root, with the container's state on standard input.  The
 * program reads the image's file below the mount.  If that names libraries, it writes a file with the image's libraries
 * and then ours into the container's bundle, and mounts it read-only over both.  An image without such a file is not
 * changed.
 *
 * After an error the program logs the reason, and the container is not created, so neither limits nor the image's
 * libraries are lost silently.  The image is not trusted: the program follows no link in it, because the node's files
 * can still be reached here.
 */
#include "nolibc.h"
#include "json.h"

#include <linux/fcntl.h>
#include <linux/mount.h>
#include <linux/stat.h>

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif
#define ENOENT 2
#define MAX_PATH_BYTES 4096
#define MAX_PRELOAD_BYTES 16384 /* limit of an image's file */

static char state[1 << 16], config[1 << 22], ours[MAX_PRELOAD_BYTES], theirs[MAX_PRELOAD_BYTES], merged[2 * MAX_PRELOAD_BYTES + 1];
static char bundle[MAX_PATH_BYTES], root[MAX_PATH_BYTES], path[MAX_PATH_BYTES];

static _Noreturn void end(int status)
{
	for (;;)
		bare(__NR_exit_group, status, 0, 0, 0, 0);
}

static void say(const char *text)
{
	bare(__NR_write, 2, text, bare_length(text), 0, 0);
}

static _Noreturn void fail(const char *what, const char *where, long error)
{
	char digits[8], *at = digits + sizeof digits - 1;
	*at = 0;
	for (long left = -error; left > 0 && at > digits; left /= 10)
		*--at = (char)('0' + left % 10);
	say("gpulimit: /etc/ld.so.preload of the image cannot be merged: ");
	say(where);
	say(" ");
	say(what);
	if (error) {
		say(": error ");
		say(at);
	}
	say("\n");
	end(1);
}

/* Reads the whole file, at most size - 1 bytes, and appends a null byte; -1: it is longer. */
static long read_all(long fd, char *out, size_t size)
{
	size_t length = 0;
	while (length < size - 1) {
		long got = bare(__NR_read, fd, out + length, size - 1 - length, 0, 0);
		if (got < 0)
			return got;
		if (!got)
			break;
		length += (size_t)got;
	}
	out[length] = 0;
	return length < size - 1 ? (long)length : -1;
}

/* Appends to a text; the path stays within MAX_PATH_BYTES. */
static void add(char *to, const char *text)
{
	size_t length = bare_length(to), more = bare_length(text);
	if (length + more + 1 > MAX_PATH_BYTES)
		fail("is too long", to, 0);
	for (size_t i = 0; i <= more; i++)
		to[length + i] = text[i];
}

static long open_at(long folder, const char *name, long flags)
{
	return bare(__NR_openat, folder, name, flags | O_CLOEXEC, 0644, 0);
}

/* Finds the container's root, from its state and its configuration. */
static void find_root(void)
{
	long length = read_all(0, state, sizeof state);
	const char *value = length >= 0 ? json_member(state, "bundle") : NULL;
	if (!value || !json_text(value, bundle, sizeof bundle) || bundle[0] != '/')
		fail("names no bundle", "the container's state", length < 0 ? length : 0);
	add(path, bundle);
	add(path, "/config.json");
	long fd = open_at(AT_FDCWD, path, O_RDONLY);
	if (fd < 0)
		fail("cannot be opened", path, fd);
	length = read_all(fd, config, sizeof config);
	value = length >= 0 ? json_member(config, "root") : NULL;
	value = value ? json_member(value, "path") : NULL;
	char found[MAX_PATH_BYTES];
	if (!value || !json_text(value, found, sizeof found) || !found[0])
		fail("names no root", path, length < 0 ? length : 0);
	if (found[0] != '/') {
		add(root, bundle);
		add(root, "/");
	}
	add(root, found);
}

/* Opens etc/ld.so.preload below a folder without following links; sets *is to its status.  -ENOENT: none. */
static long open_preload(long folder, struct statx *is)
{
	long etc = open_at(folder, "etc", O_PATH | O_NOFOLLOW | O_DIRECTORY);
	if (etc == -ENOENT)
		return etc;
	if (etc < 0)
		fail("is no folder", "/etc of the image", etc);
	long probe = open_at(etc, "ld.so.preload", O_PATH | O_NOFOLLOW);
	if (probe < 0)
		return probe;
	long error = bare(__NR_statx, probe, "", AT_EMPTY_PATH, STATX_BASIC_STATS, is);
	if (error < 0 || (is->stx_mode & 0170000) != 0100000)
		fail("is not a plain file", "it", error);
	return open_at(etc, "ld.so.preload", O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
}

/* True if a file names libraries: it has more than blanks and comments. */
static int names_any(const char *text)
{
	for (; *text; text++) {
		if (*text == '#')
			while (text[1] && text[1] != '\n')
				text++;
		else if (*text != ' ' && *text != '\t' && *text != '\n' && *text != '\r' && *text != ':')
			return 1;
	}
	return 0;
}

/* Writes the image's libraries and then ours into a file in the bundle; stores its name in `path`.  A library of the
 * image that takes over driver calls too would never be called if it came after ours. */
static void write_merged(void)
{
	size_t length = 0;
	const char *const parts[] = {theirs, "\n", ours};
	for (size_t part = 0; part < 3; part++)
		for (const char *at = parts[part]; *at && length < sizeof merged; at++)
			merged[length++] = *at;
	path[0] = 0;
	add(path, bundle);
	add(path, "/gpulimit.ld.so.preload");
	long fd = open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
	if (fd < 0)
		fail("cannot be made", path, fd);
	long error = bare(__NR_fchmod, fd, 0644, 0, 0, 0);
	long put = bare(__NR_write, fd, merged, length, 0, 0);
	if (error < 0 || put != (long)length)
		fail("cannot be written", path, error < 0 ? error : put);
	bare(__NR_close, fd, 0, 0, 0, 0);
}

_Noreturn void bare_main(void)
{
	struct statx of_ours, of_theirs;
	find_root();
	long top = open_at(AT_FDCWD, root, O_PATH | O_DIRECTORY);
	if (top < 0)
		fail("cannot be opened", root, top);
	/* Makes a copy of the mount without what is mounted inside: the image's own files. */
	long below = bare(__NR_open_tree, top, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | O_CLOEXEC, 0, 0);
	if (below < 0)
		fail("cannot be looked below", root, below);
	long fd = open_preload(below, &of_theirs);
	if (fd == -ENOENT)
		end(0);
	long length = fd < 0 ? fd : read_all(fd, theirs, sizeof theirs);
	if (length < 0)
		fail(length == -1 ? "is too long" : "cannot be read", "it", length == -1 ? 0 : length);
	if (!names_any(theirs))
		end(0);
	fd = open_preload(top, &of_ours);
	if (fd < 0 || read_all(fd, ours, sizeof ours) < 0)
		fail("cannot be read", "ours", fd < 0 ? fd : 0);
	if (of_ours.stx_ino == of_theirs.stx_ino && of_ours.stx_dev_major == of_theirs.stx_dev_major &&
	    of_ours.stx_dev_minor == of_theirs.stx_dev_minor)
		fail("is not mounted", "ours", 0);
	write_merged();
	add(root, "/etc/ld.so.preload");
	long error = bare(__NR_mount, path, root, 0, MS_BIND, 0);
	if (error < 0)
		fail("cannot be mounted", path, error);
	error = bare(__NR_mount, 0, root, 0, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, 0);
	if (error < 0)
		fail("cannot be made read-only", path, error);
	end(0);
}

BARE_PROGRAM;
