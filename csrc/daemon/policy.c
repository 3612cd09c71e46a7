/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's policy: the daemon's file, received from it or found in /dev/shm, and mapped read-only.  Launches read it
 * without a lock or a system call.  Only a file that passes all checks is mapped.  Its owner, the only user that could
 * truncate it later, is root or this user.  A restarted daemon makes a new file.  That one is mapped beside the old one,
 * which other threads may still read.
 */
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "segment/header.h"
#include "shim.h"

#define MAX_AHEAD_NS GL_SECOND_NS /* a heartbeat further in the future is nonsense */

/* The entry of a card that the policy does not name: no memory and no time, as with a card missing in a list of quotas. */
static const struct gl_policy_device nothing = {.ready = 1, .compute_limit_percent = 1};

static int check_file(int fd, struct stat *st, bool given)
{
	uint32_t me = (uint32_t)gl_syscall(SYS_geteuid);
	if (gl_syscall(SYS_fstat, fd, st) != 0)
		return -EIO;
	/* Inside a user namespace the owner of a received file may have no number, so it is not checked. */
	bool own = given || st->st_uid == 0 || st->st_uid == me;
	if (!S_ISREG(st->st_mode) || !own || (st->st_mode & 022))
		return -EPERM;
	return st->st_size == sizeof(struct gl_policy) ? 0 : -EPROTO;
}

static bool valid(const struct gl_policy *policy, const char *tenant)
{
	const struct gl_header *h = &policy->header;
	return gl_header_is_valid(h, GL_POLICY_MAGIC, sizeof *policy) && strncmp(h->tenant, tenant, sizeof h->tenant) == 0;
}

static int map_file(int fd, const char *tenant, bool given)
{
	struct gl_daemon *daemon = &gl_self.daemon;
	struct stat st;
	int r = check_file(fd, &st, given);
	if (r)
		return r;
	if (daemon->policy && daemon->policy_inode == st.st_ino && daemon->policy_device == st.st_dev)
		return valid(daemon->policy, tenant) ? 0 : -EPROTO;
	void *at = mmap(NULL, sizeof(struct gl_policy), PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	if (!valid(at, tenant)) {
		munmap(at, sizeof(struct gl_policy));
		return -EPROTO;
	}
	daemon->policy_device = st.st_dev;
	daemon->policy_inode = st.st_ino;
	gl_store_release(&daemon->policy, (const struct gl_policy *)at);
	return 0;
}

int gl_policy_map(int given, const char *name, const char *tenant)
{
	char path[128];
	struct gl_out out;
	int kept = errno, r;
	if (given >= 0) {
		r = map_file(given, tenant, true);
		errno = kept;
		return r;
	}
	gl_out_begin(&out, path, sizeof path);
	gl_out_text(&out, GL_SHM_DIRECTORY);
	gl_out_text(&out, name);
	/* O_NONBLOCK: the name may be a FIFO. */
	int fd = gl_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
	if (fd < 0)
		return fd;
	r = map_file(fd, tenant, false);
	errno = kept;
	gl_close(fd);
	return r;
}

static bool is_for(const struct gl_policy_device *entry, const uint8_t uuid[16])
{
	return gl_load_acquire(&entry->ready) == 1 && memcmp(entry->uuid, uuid, 16) == 0;
}

const struct gl_policy_device *gl_policy_for(const uint8_t uuid[16], uint32_t *hint)
{
	const struct gl_policy *policy = gl_load_acquire(&gl_self.daemon.policy);
	if (!policy)
		return NULL;
	const struct gl_policy_device *entry = &policy->device[gl_load_relaxed(hint) % GL_MAX_NODE_DEVICES];
	if (GL_LIKELY(is_for(entry, uuid)))
		return entry;
	for (uint32_t i = 0; i < GL_MAX_NODE_DEVICES; i++)
		if (is_for(&policy->device[i], uuid)) {
			gl_store_relaxed(hint, i);
			return &policy->device[i];
		}
	return &nothing;
}

const struct gl_policy_device *gl_policy_of(const struct gl_gpu *gpu)
{
	return gl_policy_for(gpu->uuid, &gl_self.daemon.entry[gpu->index]);
}

bool gl_policy_fresh(uint64_t now_ns)
{
	const struct gl_policy *policy = gl_load_acquire(&gl_self.daemon.policy);
	if (!policy)
		return false;
	uint64_t beat = gl_load_relaxed(&policy->heartbeat_ns);
	bool away = beat > now_ns ? beat - now_ns > MAX_AHEAD_NS : now_ns - beat > GL_MAX_HEARTBEAT_AGE_NS;
	away |= beat <= gl_load_relaxed(&gl_self.daemon.lost_ns);
	if (away != gl_load_relaxed(&gl_self.daemon.away)) {
		gl_store_relaxed(&gl_self.daemon.away, (uint32_t)away);
		gl_log(GL_WARN, away ? "the daemon is away: memory limits hold, GPU time goes by the wall clock"
				     : "the daemon is back");
	}
	return !away;
}

void gl_policy_lost(void)
{
	const struct gl_policy *policy = gl_load_acquire(&gl_self.daemon.policy);
	if (!policy)
		return;
	gl_store_relaxed(&gl_self.daemon.lost_ns, gl_now_ns());
	for (uint32_t i = 0; i < GL_MAX_NODE_DEVICES; i++)
		if (gl_load_acquire(&policy->device[i].ready) == 1) /* to wake, the kernel only reads */
			gl_futex_wake((uint32_t *)(uintptr_t)&policy->device[i].change, INT_MAX);
}
