/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: what the daemon does with a tenant's segment that holds nonsense, is cut short and has holes.  It returns,
 * with an answer that it may give, stays inside the file, and takes no memory for holes in the slots.
 * Input: records that each change the file or have the daemon look at it.
 */
#include "node/usage.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/turn_watch.h"

enum { PAGE = 4096, SIZE = sizeof(struct gl_usage), FEW_SLOTS = 6 };
static int fd = -1;
static struct gl_usage *usage;

struct record {
	uint32_t place;
	uint8_t what, more[3];
	uint64_t value;
};

static void must(int truth)
{
	if (!truth)
		abort();
}

static int is_whole(void)
{
	struct stat st;
	must(fstat(fd, &st) == 0);
	return st.st_size >= SIZE;
}

static long taken(void)
{
	struct stat st;
	must(fstat(fd, &st) == 0);
	return st.st_blocks;
}

/* An empty segment with a right header. */
static void begin(void)
{
	if (fd < 0) {
		fd = memfd_create("usage", 0);
		must(fd >= 0 && ftruncate(fd, SIZE) == 0);
		usage = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		must(usage != MAP_FAILED);
	}
	must(ftruncate(fd, 0) == 0 && ftruncate(fd, SIZE) == 0);
	must(gl_node_usage_begin(usage, "fuzz", 1) == 0);
}

/* Header, devices and the first slots get most of the words; they must not grow the file again. */
static void put(const struct record *record)
{
	uint64_t space = record->more[0] & 1 ? SIZE : offsetof(struct gl_usage, slot) + FEW_SLOTS * sizeof(struct gl_slot);
	uint64_t at = record->place % (space / 8) * 8;
	if (is_whole())
		must(pwrite(fd, &record->value, sizeof(record->value), (off_t)at) == sizeof(record->value));
}

static void use_slots(const struct record *record)
{
	uint32_t used = record->value % 4 ? (uint32_t)(record->value % 520) : UINT32_MAX;
	if (is_whole())
		must(pwrite(fd, &used, sizeof(used), offsetof(struct gl_header, slots_used)) == sizeof(used));
}

static void cut(const struct record *record)
{
	must(ftruncate(fd, record->value % 3 ? (off_t)(record->place % (SIZE / PAGE)) * PAGE : SIZE) == 0);
}

static void punch(const struct record *record)
{
	off_t at = record->place % (SIZE / PAGE) * PAGE;
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, (off_t)(1 + record->value % 64) * PAGE) == 0);
}

static void sample(void)
{
	struct gl_sample found;
	int r = gl_node_sample(usage, &found);
	must(r == 0 || r == -EPROTO || (r == -EFAULT && !is_whole()));
	must(r != 0 || found.slots <= GL_MAX_SLOTS);
}

static void reap(void)
{
	long before = taken();
	int r = gl_node_reap(usage, fd);
	must((r >= 0 && r <= GL_MAX_SLOTS) || r == -ETIMEDOUT || (r == -EFAULT && !is_whole()));
	/* The header's page, and the rest of a slot of which the first word is there. */
	must(taken() <= before + (r > 0 ? r + 1 : 1) * 2 * (PAGE / 512));
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	must(fcntl(fd, F_OFD_GETLK, &range) == 0 && range.l_type == F_UNLCK);
}

static void watch(const struct record *record)
{
	struct gl_turn_watch watch = {
		.usage = usage, .device = record->place % GL_MAX_DEVICES, .until_spent_ns = record->value};
	gl_turn_watch_poll(&watch, 1);
	must(watch.expired <= 1);
	int r = gl_node_memory_changed(usage, record->place % (GL_MAX_DEVICES + 1));
	must(r == 0 || r == -EINVAL || (r == -EFAULT && !is_whole()));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct record record;

	begin();
	for (; size >= sizeof(record); data += sizeof(record), size -= sizeof(record)) {
		memcpy(&record, data, sizeof(record));
		switch (record.what % 8) {
		case 0: use_slots(&record); break;
		case 1: cut(&record); break;
		case 2: punch(&record); break;
		case 3: sample(); break;
		case 4: reap(); break;
		case 5: watch(&record); break;
		default: put(&record);
		}
	}
	return 0;
}
