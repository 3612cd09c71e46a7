/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's segment: a file in /dev/shm that all its processes map.  A living process holds record locks on the first
 * bytes of its slot (alive.c).  The kernel drops them when the process ends, for whatever reason and across pid namespaces.
 * So a process that can lock them knows that the owner is dead, and the lock makes it the only one that clears the dead
 * process's slot.  The lock on byte 0 serialises making the segment, joining and adding devices.
 */
#include <limits.h>
#include <string.h>

#include "segment/abandoned.h"
#include "segment/alive.h"
#include "segment/file.h"
#include "segment/name.h"
#include "segment/slots.h"
#include "shim.h"

static void describe(struct gl_slot *s)
{
	struct gl_identity id = gl_identity_read();
	s->pid = gl_self.pid;
	s->asked = 0;
	s->host_pid = 0;
	s->start_ticks = id.start_ticks;
	s->pid_namespace = id.pid_namespace;
	memcpy(s->name, id.name, sizeof s->name);
	gl_add_relaxed(&s->generation, 1); /* odd from here on: in use */
}

static int claim_slot(void)
{
	struct gl_header *h = &gl_self.usage->header;
	uint32_t used = gl_load_relaxed(&h->slots_used);
	if (used > GL_MAX_SLOTS)
		return -EPROTO;
	/* Tries free slots first.  The locks of slots in use are only tried if none is free, so joining stays cheap. */
	for (int pass = 0; pass < 2; pass++)
		for (uint32_t i = 0; i < GL_MAX_SLOTS; i++) {
			if (pass == 0 && i < used && (gl_load_relaxed(&gl_self.usage->slot[i].generation) & 1))
				continue;
			if (gl_slot_lock(gl_self.fd, F_WRLCK, i) != 0)
				continue;
			int r = gl_segment_file_room(gl_self.fd, gl_slot_offset(i), sizeof(struct gl_slot));
			if (r != 0)
				return r; /* closing the file drops the lock */
			if (i >= used)
				gl_store_relaxed(&h->slots_used, i + 1);
			gl_self.slot = (int)i;
			gl_self.own = &gl_self.usage->slot[i];
			gl_slot_clear(gl_self.usage, i);
			describe(gl_self.own);
			return 0;
		}
	return -EUSERS;
}

static int attach_once(const char *path)
{
	gl_self.fd = gl_segment_file_open(path);
	if (gl_self.fd < 0)
		return gl_self.fd;
	int r = gl_alive_remember(gl_self.fd);
	GL_TEST_POINT("joining-opened");
	if (r == 0)
		r = gl_segment_file_lock(gl_self.fd);
	if (r == 0 && gl_segment_file_removed(gl_self.fd))
		r = -ESTALE;
	GL_TEST_POINT("joining-locked");
	if (r == 0)
		r = gl_segment_file_map(gl_self.fd, path);
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
	if (!gl_segment_daemon_tenant())
		gl_abandoned_remove();
	int r = attach_once(path);
	/* If a daemon makes the segment, the process asks the daemon for it again. */
	for (int again = 0; r == -ESTALE && again < 20 && !gl_segment_daemon_tenant(); again++)
		r = attach_once(path);
	return r == -ENOENT && gl_segment_daemon_tenant() ? -ESTALE : r;
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
	char path[GL_SEGMENT_PATH_BYTES];
	int r = gl_segment_path(path);
	if (r == 0)
		r = attach(path);
	if (r == 0)
		gl_log(GL_INFO, "in tenant segment %s as slot %d", path, gl_self.slot);
	else if (r != -ESTALE || !again)
		gl_log(GL_ERROR, "cannot use %s: %s; every CUDA call of this process is refused", path, gl_segment_reason(r));
	return r;
}

/* Makes sure that this process has the segment open, and opens it again if the program has closed it. */
static int take_file_again(void)
{
	char path[GL_SEGMENT_PATH_BYTES];
	int r = gl_alive_check_file();
	if (r != -EBADF)
		return r;
	r = gl_segment_path(path);
	return r != 0 ? r : gl_alive_reopen(path) ? 0 : -EBADF;
}

int gl_segment_reap(void)
{
	int cleared = 0;
	uint32_t used = gl_load_relaxed(&gl_self.usage->header.slots_used);
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
	return gl_segment_file_room(gl_self.fd, offsetof(struct gl_usage, share), sizeof gl_self.usage->share);
}

/* The kernel reports the holder of the slot's lock.  Without the segment's descriptor, only processes of the same
 * namespace can be named. */
uint32_t gl_segment_pid(uint32_t slot)
{
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)gl_slot_offset(slot), .l_len = 1};
	const struct gl_slot *s = &gl_self.usage->slot[slot];
	if ((int)slot == gl_self.slot)
		return gl_self.pid;
	if (gl_alive_check_file() == 0 && gl_syscall(SYS_fcntl, gl_self.fd, F_GETLK, &range) == 0)
		return range.l_type == F_UNLCK || range.l_pid < 0 ? 0 : (uint32_t)range.l_pid;
	return gl_load_relaxed(&s->pid_namespace) == gl_self.own->pid_namespace ? gl_load_relaxed(&s->pid) : 0;
}

struct gl_device *gl_segment_find_device(const uint8_t uuid[16], uint32_t *index)
{
	for (uint32_t i = 0; i < GL_MAX_DEVICES; i++) {
		struct gl_device *d = &gl_self.usage->device[i];
		if (gl_load_acquire(&d->ready) != 1 || memcmp(d->uuid, uuid, 16) != 0)
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
		if (gl_load_acquire(&d->ready))
			continue;
		uint64_t cover = offsetof(struct gl_usage, cover) + i * sizeof(struct gl_cover);
		int r = gl_segment_file_room(gl_self.fd, cover, sizeof(struct gl_cover));
		gl_self.entry_error = r;
		if (r != 0)
			return NULL;
		memcpy(d->uuid, uuid, 16);
		gl_store_relaxed(&d->card_bytes, card_bytes);
		gl_store_relaxed(&d->memory_limit_bytes, limit_bytes);
		gl_store_relaxed(&d->compute_limit_percent, compute_percent);
		gl_store_relaxed(&d->weight, weight);
		gl_store_release(&d->ready, 1u);
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
		r = gl_segment_file_lock(gl_self.fd);
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
