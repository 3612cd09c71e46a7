/* SPDX-License-Identifier: Apache-2.0 */
#include "node/usage.h"

#include <limits.h>
#include <string.h>

#include "base/sys.h"
#include "node/sigbus_guard.h"
#include "segment/header.h"
#include "segment/slots.h"

#define MAX_REAP_NS UINT64_C(200000000)

static void add_slot(const struct gl_slot *slot, struct gl_sample *sample)
{
	if (!(gl_load_relaxed(&slot->generation) & 1))
		return;
	sample->slots++;
	for (uint32_t d = 0; d < GL_MAX_DEVICES; d++) {
		const struct gl_account *a = &slot->account[d];
		if (!sample->device[d].ready)
			continue;
		sample->device[d].waiting += gl_load_relaxed(&a->waiting) != 0;
		sample->device[d].processes += gl_load_relaxed(&a->spent_ns) != 0;
		sample->device[d].outstanding_ns += gl_load_relaxed(&a->outstanding_ns);
		if (gl_load_relaxed(&a->queue_end_ns) > sample->device[d].queue_end_ns)
			sample->device[d].queue_end_ns = gl_load_relaxed(&a->queue_end_ns);
		sample->device[d].memory_waiting += gl_load_relaxed(&a->memory_waiting) != 0;
	}
}

struct sampling {
	struct gl_usage *usage;
	struct gl_sample *sample;
};

static int sample_now(void *argument)
{
	const struct sampling *s = argument;
	struct gl_usage *usage = s->usage;
	const struct gl_header *h = &usage->header;
	*s->sample = (struct gl_sample){.doorbell = gl_load_acquire(&h->doorbell),
					.created_ns = gl_load_relaxed(&h->created_ns)};
	if (!gl_header_is_valid(h, GL_USAGE_MAGIC, sizeof *usage))
		return -EPROTO;
	for (uint32_t d = 0; d < GL_MAX_DEVICES; d++) {
		s->sample->device[d].ready = gl_load_acquire(&usage->device[d].ready) == 1;
		s->sample->device[d].spent_ns = gl_load_relaxed(&usage->device[d].spent_ns);
		s->sample->device[d].memory_freed = gl_load_relaxed(&usage->device[d].memory_freed);
		s->sample->device[d].memory_waits = gl_load_relaxed(&usage->device[d].memory_waits);
		memcpy(s->sample->device[d].uuid, usage->device[d].uuid, 16);
	}
	s->sample->gang_devices = gl_load_relaxed(&usage->gang.devices);
	uint32_t used = gl_load_relaxed(&h->slots_used);
	for (uint32_t i = 0; i < used && i < GL_MAX_SLOTS; i++)
		add_slot(&usage->slot[i], s->sample);
	return 0;
}

int gl_node_sample(struct gl_usage *usage, struct gl_sample *sample)
{
	struct sampling s = {usage, sample};
	return gl_guarded(sample_now, &s);
}

struct beginning {
	struct gl_usage *usage;
	const char *tenant;
	uint64_t created_ns;
};

static int begin_now(void *argument)
{
	const struct beginning *b = argument;
	gl_header_begin(&b->usage->header, GL_USAGE_MAGIC, sizeof *b->usage, b->tenant, b->created_ns);
	return 0;
}

int gl_node_usage_begin(struct gl_usage *usage, const char *tenant, uint64_t created_ns)
{
	struct beginning b = {usage, tenant, created_ns};
	return gl_guarded(begin_now, &b);
}

static int memory_changed(void *argument)
{
	struct gl_device *d = argument;
	__atomic_fetch_add(&d->memory_change, 1, __ATOMIC_RELEASE);
	gl_futex_wake(&d->memory_change, INT_MAX);
	return 0;
}

int gl_node_memory_changed(struct gl_usage *usage, uint32_t device)
{
	return device < GL_MAX_DEVICES ? gl_guarded(memory_changed, &usage->device[device]) : -EINVAL;
}

struct reaping {
	struct gl_usage *usage;
	int fd;
	uint32_t slot;
};

static int reap_now(void *argument)
{
	const struct reaping *r = argument;
	return gl_slot_reap(r->usage, r->fd, r->slot);
}

/* True if the slot's first word is in memory.  Reading a hole in the file would allocate a page. */
static bool has_data(int fd, uint32_t slot)
{
	long offset = (long)gl_slot_offset(slot);
	return gl_syscall(SYS_lseek, fd, offset, SEEK_DATA) == offset;
}

static int reap_one(struct gl_usage *usage, int fd, uint32_t slot)
{
	struct reaping r = {usage, fd, slot};
	int one = has_data(fd, slot) ? gl_guarded(reap_now, &r) : 0;
	if (one < 0)
		(void)gl_slot_lock(fd, F_UNLCK, slot); /* gl_slot_reap may have locked the slot before the fault */
	return one;
}

static int count_used(void *usage)
{
	uint32_t used = gl_load_relaxed(&((const struct gl_usage *)usage)->header.slots_used);
	return used < GL_MAX_SLOTS ? (int)used : GL_MAX_SLOTS;
}

int gl_node_reap(struct gl_usage *usage, int fd)
{
	int cleared = 0, used = gl_guarded(count_used, usage);
	uint64_t end = gl_now_ns() + MAX_REAP_NS;
	for (int slot = 0; slot < used; slot++) {
		int one = reap_one(usage, fd, (uint32_t)slot);
		if (one < 0)
			return one;
		cleared += one;
		if (gl_now_ns() > end)
			return -ETIMEDOUT; /* the tenant must be changing its accounts meanwhile */
	}
	return used < 0 ? used : cleared;
}

int gl_node_hold(int fd)
{
	/* Any byte that belongs to no slot, except the first one, which is the set-up lock. */
	return gl_record_lock(fd, F_WRLCK, sizeof(struct gl_header));
}
