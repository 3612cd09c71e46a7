/* SPDX-License-Identifier: Apache-2.0 */
#include "segment/slots.h"

#include "base/sys.h"
#include "segment/ledger.h"
#include "segment/shares.h"

int gl_record_lock(int fd, short type, uint64_t offset)
{
	struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = 1};
	return (int)gl_syscall(SYS_fcntl, fd, F_SETLK, &range);
}

int gl_slot_lock(int fd, short type, uint32_t slot)
{
	struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)gl_slot_offset(slot), .l_len = GL_ALIVE_BYTES};
	return (int)gl_syscall(SYS_fcntl, fd, F_SETLK, &range);
}

int gl_slots_inhabited(int fd)
{
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = sizeof(struct gl_header), .l_len = 0};
	int r = (int)gl_syscall(SYS_fcntl, fd, F_GETLK, &range);
	return r ? r : range.l_type != F_UNLCK;
}

uint64_t gl_slot_offset(uint32_t slot)
{
	return offsetof(struct gl_usage, slot) + slot * sizeof(struct gl_slot);
}

static void clear_account(struct gl_usage *usage, uint32_t device, uint32_t slot)
{
	struct gl_account *a = &usage->slot[slot].account[device];
	uint64_t bytes = gl_ledger_account(usage, device, slot);
	if (bytes)
		(void)gl_ledger_add(usage, device, slot, slot, -(int64_t)bytes, UINT64_MAX);
	for (int k = 0; k < GL_MEM_KINDS; k++)
		gl_store_relaxed(&a->kind_bytes[k], 0);
	gl_store_relaxed(&a->contexts, 0);
	gl_store_relaxed(&a->spent_ns, 0);
	gl_store_relaxed(&a->outstanding_ns, 0);
	gl_store_relaxed(&a->waiting, 0);
	gl_store_relaxed(&a->memory_waiting, 0);
	gl_store_relaxed(&a->coarse, 0);
	gl_store_relaxed(&a->pool_unused_bytes, 0);
	for (int k = 0; k < GL_LAUNCH_KINDS; k++)
		gl_store_relaxed(&a->launches[k], 0);
}

void gl_slot_clear(struct gl_usage *usage, uint32_t slot)
{
	gl_share_leave_all(usage, slot);
	for (uint32_t d = 0; d < GL_MAX_DEVICES; d++)
		clear_account(usage, d, slot);
	if (gl_load_relaxed(&usage->slot[slot].generation) & 1)
		gl_add_relaxed(&usage->slot[slot].generation, 1);
}

int gl_slot_reap(struct gl_usage *usage, int fd, uint32_t slot)
{
	if (slot >= GL_MAX_SLOTS || !(gl_load_relaxed(&usage->slot[slot].generation) & 1))
		return 0;
	if (gl_slot_lock(fd, F_WRLCK, slot) != 0)
		return 0;
	gl_slot_clear(usage, slot);
	(void)gl_slot_lock(fd, F_UNLCK, slot);
	return 1;
}
