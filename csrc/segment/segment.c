/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's segment: a file in /dev/shm that all its processes map.  A process that lives holds record locks on
 * the first bytes of its slot (alive.c); the kernel drops them at death, however the process died, and tells it across
 * pid namespaces.  So "can I lock them?" is "is it dead?", and holding the locks makes one process alone responsible
 * for clearing what the dead one held.  The lock on byte 0 serialises making the segment, joining and adding devices.
 */
#include <string.h>
#include <sys/stat.h>

#include "segment/abandoned.h"
#include "segment/alive.h"
#include "segment/slots.h"
#include <limits.h>

#include "shim.h"

#define DIRECTORY "/dev/shm/"
enum { SET_UP_TRIES = 5000 }; /* of 1 ms */

/* 1: someone holds a slot, so the tenant has a living process (this one does not count itself); 0: none does; or
 * negative errno: it cannot be told, and living books must not be taken for dead ones. */
static int inhabited(int fd)
{
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = sizeof(struct gl_header), .l_len = 0};
	int r = (int)gl_syscall(SYS_fcntl, fd, F_GETLK, &range);
	return r ? r : range.l_type != F_UNLCK;
}

static int lock_set_up(int fd)
{
	struct timespec pause = {0, 1000000};
	for (int i = 0; i < SET_UP_TRIES; i++) {
		int r = gl_record_lock(fd, F_WRLCK, 0);
		if (r != -EAGAIN && r != -EACCES)
			return r;
		(void)gl_syscall(SYS_nanosleep, &pause, NULL);
	}
	return -ETIMEDOUT;
}

static void path_of(const char *tenant, char *out, size_t size)
{
	size_t at = 0;
	for (const char *part = DIRECTORY GL_USAGE_PREFIX; *part && at + 1 < size; part++)
		out[at++] = *part;
	for (; *tenant && at + 1 < size; tenant++)
		out[at++] = *tenant;
	out[at] = 0;
}

static const char *daemons_tenant(void)
{
	return gl_self.daemon.registered ? gl_self.daemon.tenant : NULL;
}

/* A segment that this process can use is a regular file, of its user or root. */
static int check_owner(int fd)
{
	struct stat st;
	uint32_t me = (uint32_t)gl_syscall(SYS_geteuid);
	int r = (int)gl_syscall(SYS_fstat, fd, &st);
	return r == 0 && (!S_ISREG(st.st_mode) || (st.st_uid != me && st.st_uid != 0)) ? -EPERM : r;
}

static void append_user(char path[128])
{
	uint64_t rest = (uint64_t)gl_syscall(SYS_geteuid);
	char digits[20];
	size_t at = strlen(path), n = 0;
	do
		digits[n++] = (char)('0' + rest % 10);
	while (rest /= 10);
	path[at++] = GL_USER_MARK;
	while (n)
		path[at++] = digits[--n];
	path[at] = 0;
}

enum name_state { NAME_FREE, NAME_OWN, NAME_INHABITED, NAME_FOREIGN };

/* What has a name: a name_state, or negative errno if that cannot be told.  A call that fails for another reason must not
 * be taken for a foreign file: the tenant would get a second segment, and its quota twice. */
static int look_at_name(const char *path)
{
	int fd = gl_open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0), r = fd;
	if (fd >= 0) {
		r = check_owner(fd);
		if (r == 0)
			r = inhabited(fd);
		gl_close(fd);
	}
	switch (r) {
	case 0: return NAME_OWN;
	case 1: return NAME_INHABITED;
	case -ENOENT: return NAME_FREE;
	case -EACCES: case -EPERM: case -ELOOP: case -EISDIR: case -ENXIO: case -ENODEV: return NAME_FOREIGN;
	default: return r;
	}
}

/* Names are per user: where another user's segment, or anything else, has the plain name, this user's has one with its
 * number.  Which of the two it is stays so while processes live in it. */
static int choose_name(char path[128])
{
	char own[128];
	memcpy(own, path, sizeof own);
	append_user(own);
	int with_number = look_at_name(own);
	int plain = with_number < 0 || with_number == NAME_INHABITED ? NAME_FREE : look_at_name(path);
	if (with_number == NAME_INHABITED || plain == NAME_FOREIGN)
		memcpy(path, own, sizeof own);
	return with_number < 0 ? with_number : plain < 0 ? plain : 0;
}

/* Not for a process that has the segment open: closing it here would drop its locks. */
static int join_path(char out[128])
{
	char automatic[GL_TENANT_NAME_BYTES] = "";
	const char *tenant = daemons_tenant() ? daemons_tenant() : gl_self.quota.tenant;
	int r = 0;
	if (!*tenant) {
		r = gl_default_tenant(automatic);
		tenant = automatic;
	}
	path_of(tenant, out, 128);
	if (r == 0 && !daemons_tenant())
		r = choose_name(out);
	return r;
}

bool gl_segment_exists(void)
{
	char path[128];
	if (join_path(path) != 0)
		return true; /* joining it will say why not */
	int fd = gl_open(path, O_RDWR | O_NOFOLLOW, 0);
	if (fd < 0)
		return fd == -EMFILE || fd == -ENFILE;
	bool found = inhabited(fd) != 0;
	gl_close(fd);
	return found;
}

/* The file that the daemon handed over with the registration; then it need not be in this process's /dev/shm, nor
 * belong to this user.  -1: none, or it was taken before. */
static int handed_over(void)
{
	int fd = gl_self.daemon.registered ? gl_self.daemon.usage_fd : -1;
	gl_self.daemon.usage_fd = -1;
	return fd;
}

static int open_file(const char *path)
{
	int given = handed_over();
	if (given >= 0)
		return given;
	/* Without O_CREAT first: fs.protected_regular refuses O_CREAT on another's file in a sticky directory. */
	int fd = gl_open(path, O_RDWR | O_NOFOLLOW, 0);
	if (fd == -ENOENT && !daemons_tenant())
		fd = gl_open(path, O_RDWR | O_NOFOLLOW | O_CREAT, 0600);
	if (fd < 0)
		return fd;
	int r = check_owner(fd);
	if (r != 0) {
		gl_close(fd);
		return r;
	}
	/* Out of the way of programs that expect to get, or close, low numbers. */
	int high = (int)gl_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 200);
	if (high < 0)
		return fd;
	gl_close(fd);
	return high;
}

static bool valid(const struct gl_header *h)
{
	return gl_load(&h->ready) == 1 && h->magic == GL_USAGE_MAGIC && h->version == GL_LAYOUT_VERSION &&
	       h->size == sizeof(struct gl_usage);
}

static void write_header(struct gl_usage *usage, const char *path)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	struct gl_header *h = &usage->header;
	h->magic = GL_USAGE_MAGIC;
	h->version = GL_LAYOUT_VERSION;
	h->size = sizeof *usage;
	h->created_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	const char *tenant = path + sizeof(DIRECTORY GL_USAGE_PREFIX) - 1;
	memcpy(h->tenant, tenant, strnlen(tenant, sizeof h->tenant - 1));
	gl_store(&h->ready, 1u);
}

/* A tenant whose processes have all gone starts anew: clean books, and the limits of who comes first.  The file is
 * not cut short, since somebody who only looks may have it mapped. */
static void start_anew(int fd, struct gl_usage *usage)
{
	const long punch_hole_keep_size = 3;
	if (gl_syscall(SYS_fallocate, fd, punch_hole_keep_size, 0L, (long)sizeof *usage) != 0)
		memset(usage, 0, sizeof *usage);
}

/* Makes sure of the room for a part of the file: where /dev/shm is full, the first touch would be a SIGBUS.  Where the
 * call itself is not to be had, that has to be risked. */
static int make_room(int fd, uint64_t offset, uint64_t bytes)
{
	const long keep_size = 1;
	int r;
	do
		r = (int)gl_syscall(SYS_fallocate, fd, keep_size, (long)offset, (long)bytes);
	while (r == -EINTR);
	return r == -EOPNOTSUPP || r == -ENOSYS || r == -EPERM ? 0 : r;
}

/* Maps the file, made or remade if no living process uses it; a daemon's stays as it is, since the time that it has
 * granted is counted against the time spent there.  The caller holds the set-up lock. */
static int map_file(int fd, const char *path)
{
	struct stat st;
	int r = (int)gl_syscall(SYS_fstat, fd, &st), living = daemons_tenant() ? 1 : inhabited(fd);
	if (r != 0 || living < 0)
		return r ? r : living;
	bool alone = !living;
	if (!alone && st.st_size != sizeof(struct gl_usage))
		return -EPROTO;
	if (st.st_size != sizeof(struct gl_usage))
		r = (int)gl_syscall(SYS_ftruncate, fd, (long)sizeof(struct gl_usage));
	if (r != 0)
		return r;
	void *at = mmap(NULL, sizeof(struct gl_usage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	gl_self.usage = at;
	if (alone) {
		start_anew(fd, gl_self.usage);
		r = make_room(fd, 0, gl_slot_offset(0));
		if (st.st_mode & GL_DEAD_MODE)
			(void)gl_syscall(SYS_fchmod, fd, 0600);
		if (r == 0)
			write_header(gl_self.usage, path);
	}
	if (r == 0 && valid(&gl_self.usage->header))
		return 0;
	munmap(at, sizeof(struct gl_usage));
	gl_self.usage = NULL;
	return r ? r : -EPROTO;
}

static void describe(struct gl_slot *s)
{
	struct gl_identity id = gl_identity_read();
	s->pid = gl_self.pid;
	s->host_pid = 0;
	s->start_ticks = id.start_ticks;
	s->pid_namespace = id.pid_namespace;
	memcpy(s->name, id.name, sizeof s->name);
	gl_add(&s->generation, 1); /* odd from here on: in use */
}

static int claim_slot(void)
{
	struct gl_header *h = &gl_self.usage->header;
	uint32_t used = gl_peek(&h->slots_used);
	if (used > GL_MAX_SLOTS)
		return -EPROTO;
	/* Free slots first; the locks of the living are only tried when there is none, so joining stays cheap. */
	for (int pass = 0; pass < 2; pass++)
		for (uint32_t i = 0; i < GL_MAX_SLOTS; i++) {
			if (pass == 0 && i < used && (gl_peek(&gl_self.usage->slot[i].generation) & 1))
				continue;
			if (gl_slot_lock(gl_self.fd, F_WRLCK, i) != 0)
				continue;
			int r = make_room(gl_self.fd, gl_slot_offset(i), sizeof(struct gl_slot));
			if (r != 0)
				return r; /* closing the file drops the lock */
			if (i >= used)
				gl_put(&h->slots_used, i + 1);
			gl_self.slot = (int)i;
			gl_self.own = &gl_self.usage->slot[i];
			gl_slot_clear(gl_self.usage, i);
			describe(gl_self.own);
			return 0;
		}
	return -EUSERS;
}

/* Somebody removed the file after we opened it (`gpulimit run` clears up behind itself). */
static bool removed(int fd)
{
	struct stat st;
	return gl_syscall(SYS_fstat, fd, &st) == 0 && st.st_nlink == 0;
}

static int attach_once(const char *path)
{
	gl_self.fd = open_file(path);
	if (gl_self.fd < 0)
		return gl_self.fd;
	int r = gl_alive_remember(gl_self.fd);
	GL_TEST_POINT("joining-opened");
	if (r == 0)
		r = lock_set_up(gl_self.fd);
	if (r == 0 && removed(gl_self.fd))
		r = -ESTALE;
	GL_TEST_POINT("joining-locked");
	if (r == 0)
		r = map_file(gl_self.fd, path);
	if (r == 0)
		r = claim_slot();
	GL_TEST_POINT("joining-claimed");
	if (r == 0)
		gl_alive_keep(); /* drops the set-up lock too, as closing the file does */
	else
		gl_close(gl_self.fd);
	GL_TEST_POINT("joining-joined");
	return r;
}

static int attach(const char *path)
{
	if (!daemons_tenant())
		gl_abandoned_remove();
	int r = attach_once(path);
	/* A daemon's is asked for again at the daemon. */
	for (int again = 0; r == -ESTALE && again < 20 && !daemons_tenant(); again++)
		r = attach_once(path);
	return r == -ENOENT && daemons_tenant() ? -ESTALE : r;
}

const char *gl_segment_reason(int error)
{
	switch (error) {
	case -EPROTO: return "it was made by another version of this library whose processes still run, or is damaged";
	case -EPERM: return "it is not a file of this user; set GPULIMIT_TENANT to a name of your own";
	case -EUSERS: return "it has no room for another process";
	case -ETIMEDOUT: return "a process holds its set-up lock";
	case -ENOENT: return "there is no /dev/shm";
	case -ESTALE: return "it is removed again and again, or the daemon's /dev/shm is another";
	default: return strerror(-error);
	}
}

bool gl_segment_may_do_later(int error)
{
	return error == -ETIMEDOUT || error == -ENOSPC || error == -ENOMEM || error == -EMFILE || error == -ENFILE ||
	       error == -EUSERS || error == -ESTALE;
}

int gl_segment_attach(bool again)
{
	char path[128];
	int r = join_path(path);
	if (r == 0)
		r = attach(path);
	if (r == 0)
		gl_log(GL_INFO, "in tenant segment %s as slot %d", path, gl_self.slot);
	else if (r != -ESTALE || !again)
		gl_log(GL_ERROR, "cannot use %s: %s; every CUDA call of this process is refused", path, gl_segment_reason(r));
	return r;
}

/* Lets this process have the segment open: it still has, or it opens the file again after the program closed it. */
static int take_file_again(void)
{
	char path[128];
	int r = gl_alive_check_file();
	if (r != -EBADF)
		return r;
	r = join_path(path);
	return r != 0 ? r : gl_alive_reopen(path) ? 0 : -EBADF;
}

int gl_segment_reap(void)
{
	int cleared = 0;
	uint32_t used = gl_peek(&gl_self.usage->header.slots_used);
	gl_lock(&gl_self.reap_lock);
	if (take_file_again() != 0)
		used = 0;
	for (uint32_t i = 0; i < used && i < GL_MAX_SLOTS; i++)
		if ((int)i != gl_self.slot)
			cleared += gl_slot_reap(gl_self.usage, gl_self.fd, i);
	gl_unlock(&gl_self.reap_lock);
	return cleared;
}

int gl_segment_room_for_shares(void)
{
	return make_room(gl_self.fd, offsetof(struct gl_usage, share), sizeof gl_self.usage->share);
}

/* By who holds the slot's lock.  Without the segment's descriptor only those of the same namespace can be named. */
uint32_t gl_segment_pid(uint32_t slot)
{
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)gl_slot_offset(slot), .l_len = 1};
	const struct gl_slot *s = &gl_self.usage->slot[slot];
	if ((int)slot == gl_self.slot)
		return gl_self.pid;
	if (gl_alive_check_file() == 0 && gl_syscall(SYS_fcntl, gl_self.fd, F_GETLK, &range) == 0)
		return range.l_type == F_UNLCK || range.l_pid < 0 ? 0 : (uint32_t)range.l_pid;
	return gl_peek(&s->pid_namespace) == gl_self.own->pid_namespace ? gl_peek(&s->pid) : 0;
}

struct gl_device *gl_segment_find_device(const uint8_t uuid[16], uint32_t *index)
{
	for (uint32_t i = 0; i < GL_MAX_DEVICES; i++) {
		struct gl_device *d = &gl_self.usage->device[i];
		if (gl_load(&d->ready) != 1 || memcmp(d->uuid, uuid, 16) != 0)
			continue;
		*index = i;
		return d;
	}
	return NULL;
}

static struct gl_device *add_device(const uint8_t uuid[16], uint64_t card_bytes, uint64_t limit_bytes,
				    uint32_t compute_percent, uint32_t weight, uint32_t *index)
{
	for (uint32_t i = 0; i < GL_MAX_DEVICES; i++) {
		struct gl_device *d = &gl_self.usage->device[i];
		if (gl_load(&d->ready))
			continue;
		uint64_t cover = offsetof(struct gl_usage, cover) + i * sizeof(struct gl_cover);
		int r = make_room(gl_self.fd, cover, sizeof(struct gl_cover));
		gl_self.entry_error = r;
		if (r != 0)
			return NULL;
		memcpy(d->uuid, uuid, 16);
		gl_put(&d->card_bytes, card_bytes);
		gl_put(&d->memory_limit_bytes, limit_bytes);
		gl_put(&d->compute_limit_percent, compute_percent);
		gl_put(&d->weight, weight);
		gl_store(&d->ready, 1u);
		*index = i;
		return d;
	}
	gl_self.entry_error = -EUSERS;
	return NULL;
}

struct gl_device *gl_segment_device(const uint8_t uuid[16], uint64_t card_bytes, uint64_t limit_bytes,
				    uint32_t compute_percent, uint32_t weight, uint32_t *index)
{
	struct gl_device *device = gl_segment_find_device(uuid, index);
	if (device)
		return device;
	gl_lock(&gl_self.reap_lock);
	int r = take_file_again();
	gl_unlock(&gl_self.reap_lock);
	if (r == 0)
		r = lock_set_up(gl_self.fd);
	if (r != 0) {
		gl_self.entry_error = r;
		return NULL;
	}
	device = gl_segment_find_device(uuid, index);
	if (!device)
		device = add_device(uuid, card_bytes, limit_bytes, compute_percent, weight, index);
	(void)gl_record_lock(gl_self.fd, F_UNLCK, 0);
	return device;
}

void gl_doorbell_ring(void)
{
	uint32_t *bell = &gl_self.usage->header.doorbell;
	__atomic_fetch_add(bell, 1, __ATOMIC_RELEASE);
	gl_futex_wake(bell, INT_MAX);
}
