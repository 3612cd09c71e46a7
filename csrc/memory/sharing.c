/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory passed from process to process.  Inside the tenant one of its holders is charged (shares.h).  The importer
 * finds the entry by a name that comes with the memory:
 *
 *   - opaque handles (cuIpcGetMemHandle, cuMemPoolExportPointer) are their own name;
 *   - a file descriptor has none: all descriptors of CUDA lead to one device node.  But what travels is the open file,
 *     and an open file has an owner and a signal number (F_SETOWN, F_SETSIG), which nothing else uses here and
 *     which do nothing without O_ASYNC.  The exporter leaves its pid and a number of its own there; the kernel
 *     tells the importer that pid in the importer's namespace, and no pid once the exporter is dead.
 *
 * Memory without an entry comes from outside the tenant, or from a process without the library.  The importer makes an
 * entry for it and is charged.  While another tenant that holds the memory is charged, those bytes do not count against
 * the importer's quota (loans.h).  The name among tenants is the opaque handle's too, or is made from the exporter's
 * pid in this pid namespace.
 *
 * Lock: share_lock, then ledger_lock.  A block's shard may be locked when share_lock is taken, never the other way.
 */
#include "process/gang.h"
#include "segment/loan_file.h"
#include "segment/loans.h"
#include "segment/shares.h"
#include "segment/slots.h"
#include "shim.h"

#ifndef F_SETSIG
#define F_SETSIG 10
#define F_GETSIG 11
#endif
#define BY_FD (UINT64_C(1) << 63)
enum { TAGS = 63, GENERATION_BITS = 40 };

/* ---- names ---- */

uint64_t gl_shared_name(const void *opaque)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);
	for (int i = 0; i < 64; i++)
		h = (h ^ ((const unsigned char *)opaque)[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
	return (h & ~BY_FD) | 1;
}

static uint64_t name_by_fd(uint32_t slot, uint32_t tag)
{
	uint64_t generation = gl_load_acquire(&gl_self.usage->slot[slot].generation);
	return BY_FD | (uint64_t)slot << (GENERATION_BITS + 6) |
	       (generation & ((UINT64_C(1) << GENERATION_BITS) - 1)) << 6 | tag;
}

static bool there(uint64_t name)
{
	uint32_t used = gl_load_acquire(&gl_self.usage->header.shares_used);
	for (uint32_t i = 0; i < used && i < GL_MAX_SHARES; i++)
		if (gl_load_relaxed(&gl_self.usage->share[i].key) == name &&
		    gl_load_acquire(&gl_self.usage->share[i].payer))
			return true;
	return false;
}

/* A name of this process's that no entry uses; 0: all are used. */
static uint64_t new_name(void)
{
	for (uint32_t tag = 1; tag <= TAGS; tag++) {
		uint64_t name = name_by_fd((uint32_t)gl_self.slot, tag);
		if (!there(name))
			return name;
	}
	return 0;
}

static bool write_on(int fd, uint64_t name)
{
	uint32_t slot = (uint32_t)(name >> (GENERATION_BITS + 6)) & (GL_MAX_SLOTS - 1), tag = name & TAGS;
	uint32_t pid = name_by_fd(slot, tag) == name ? gl_segment_pid(slot) : 0;
	return pid && gl_syscall(SYS_fcntl, fd, F_SETOWN, (long)pid) == 0 &&
	       gl_syscall(SYS_fcntl, fd, F_SETSIG, (long)tag) == 0;
}

uint64_t gl_shared_name_of_fd(int fd)
{
	long owner = gl_syscall(SYS_fcntl, fd, F_GETOWN), tag = gl_syscall(SYS_fcntl, fd, F_GETSIG);
	uint32_t used = gl_load_acquire(&gl_self.usage->header.slots_used);
	for (uint32_t i = 0; owner > 0 && tag > 0 && i < used && i < GL_MAX_SLOTS; i++)
		if ((gl_load_acquire(&gl_self.usage->slot[i].generation) & 1) && gl_segment_pid(i) == (uint32_t)owner)
			return name_by_fd(i, (uint32_t)tag);
	return 0;
}

/* The name among tenants of memory that a process exported by descriptor.  Only processes of its pid namespace can
 * compute it. */
static uint64_t common_name(uint32_t tag, uint32_t pid, uint64_t start_ticks)
{
	uint64_t parts[8] = {gl_self.own->pid_namespace, pid, start_ticks, tag};
	return gl_shared_name(parts);
}

uint64_t gl_shared_common_name_of_fd(int fd)
{
	long owner = gl_syscall(SYS_fcntl, fd, F_GETOWN), tag = gl_syscall(SYS_fcntl, fd, F_GETSIG);
	uint64_t start_ticks = owner > 0 && tag > 0 ? gl_identity_start_ticks((uint32_t)owner) : 0;
	return start_ticks ? common_name((uint32_t)tag, (uint32_t)owner, start_ticks) : 0;
}

/* ---- entries ---- */

/* Locks the ledgers of all devices, because the entry's device is not known before it is read.  Exports and imports are
 * rare. */
static void lock(void)
{
	gl_lock(&gl_self.share_lock);
	for (int i = 0; i < GL_MAX_DEVICES; i++)
		gl_lock(&gl_self.ledger_lock[i]);
}

static void unlock(void)
{
	for (int i = 0; i < GL_MAX_DEVICES; i++)
		gl_unlock(&gl_self.ledger_lock[i]);
	gl_unlock(&gl_self.share_lock);
}

static int add(const struct gl_gpu *gpu, const struct gl_block *block, uint64_t name, uint64_t common, uint64_t bytes,
	       uint32_t place)
{
	struct gl_share share = {.key = name, .bytes = bytes, .device = gpu->index, .kind = block->kind, .place = place,
				 .in_pool = !place && block->kind == GL_MEM_POOL,
				 .adopted = place || block->imported, .common = common};
	int entry = gl_segment_room_for_shares();
	lock();
	if (entry == 0)
		entry = gl_share_add(gl_self.usage, (uint32_t)gl_self.slot, &share);
	if (entry >= 0)
		gl_self.share_count[entry] = 1;
	unlock();
	if (entry >= 0)
		(void)gl_loan_hold(gl_loan_file(), common, place);
	return entry;
}

static bool mark(struct gl_block *block, void *entry)
{
	block->share = *(uint32_t *)entry;
	block->imported = 0; /* from now on the entry tells it */
	return false;
}

/* Records the block's memory in an entry with that name.  False: importers will be charged, too. */
static bool export(const struct gl_block *block, uint64_t name, uint64_t common, uint64_t bytes)
{
	struct gl_gpu *gpu = gl_gpu_of((CUdevice)block->ordinal);
	int entry = gpu && name ? add(gpu, block, name, common, bytes, 0) : -ENOSPC;
	if (entry < 0) {
		gl_log(GL_WARN, "there is no room to write down exported memory: its importers are charged, too");
		return false;
	}
	uint32_t share = (uint32_t)entry + 1;
	if (gl_block_update((enum gl_space)block->space, block->key, mark, &share)) {
		if (block->imported)
			gl_sub_relaxed(&gpu->imported_bytes, block->bytes);
		return true;
	}
	gl_shared_leave(share); /* freed meanwhile */
	return false;
}

void gl_shared_export(enum gl_space space, uint64_t key, const void *opaque, uint64_t bytes)
{
	struct gl_block block;
	if (!gl_block_get(space, key, &block))
		return;
	if (block.share) { /* if the driver makes another handle, importers will receive that one */
		gl_store_release(&gl_self.usage->share[block.share - 1].key, gl_shared_name(opaque));
		return;
	}
	uint64_t name = gl_shared_name(opaque);
	(void)export(&block, name, name, block.kind == GL_MEM_POOL ? bytes : block.bytes);
}

void gl_shared_export_fd(enum gl_space space, uint64_t key, int fd)
{
	struct gl_block block;
	if (!gl_block_get(space, key, &block))
		return;
	if (!block.share) {
		uint64_t name = block.bytes ? new_name() : 0;
		if (export(&block, name, common_name((uint32_t)name & TAGS, gl_self.pid, gl_self.own->start_ticks), block.bytes))
			(void)write_on(fd, name);
		return;
	}
	struct gl_share *share = &gl_self.usage->share[block.share - 1];
	if (write_on(fd, gl_load_acquire(&share->key)))
		return;
	uint64_t name = new_name(); /* the process that exported it first is dead */
	if (name) {
		gl_store_release(&share->key, name);
		(void)write_on(fd, name);
	}
}

/* Processes that share memory may wait for each other through it. */
static void note_gang(uint32_t entry)
{
	const struct gl_gpu *gpu = gl_gpu_current();
	gl_gang_note(entry);
	if (gpu)
		gl_gang_note(gpu->index);
}

bool gl_shared_join(uint64_t name, struct gl_block *block)
{
	int entry = -ENOENT;
	if (!name)
		return false;
	lock();
	entry = gl_share_join(gl_self.usage, (uint32_t)gl_self.slot, name);
	if (entry >= 0)
		gl_self.share_count[entry]++;
	unlock();
	if (entry < 0)
		return false;
	const struct gl_share *share = &gl_self.usage->share[entry];
	(void)gl_loan_hold(gl_loan_file(), gl_load_relaxed(&share->common), gl_load_relaxed(&share->place));
	block->share = (uint32_t)entry + 1;
	block->bytes = 0;
	for (int i = 0; i < gl_self.gpu_count; i++)
		if (gl_self.gpu[i].index == gl_load_relaxed(&share->device))
			block->ordinal = (uint32_t)gl_self.gpu[i].ordinal;
	note_gang(gl_load_relaxed(&share->device));
	return true;
}

bool gl_shared_import(struct gl_gpu *gpu, struct gl_block *block, uint64_t common, uint64_t bytes)
{
	int fd = common ? gl_loan_file() : -1;
	if (fd < 0)
		return false;
	uint32_t place = gl_loan_next_place(fd, common, (uint8_t)gl_shared_name(gl_self.usage->header.tenant));
	int entry = add(gpu, block, common, common, bytes, place);
	if (entry < 0)
		return false;
	block->share = (uint32_t)entry + 1;
	block->ordinal = (uint32_t)gpu->ordinal;
	return true;
}

/* The next tenant is charged before this one is uncharged. */
static void leave(uint32_t entry)
{
	const struct gl_share *share = &gl_self.usage->share[entry];
	(void)gl_loan_end(gl_loan_file(), gl_load_relaxed(&share->common), gl_load_relaxed(&share->place));
	gl_share_leave(gl_self.usage, entry, (uint32_t)gl_self.slot);
}

void gl_shared_leave(uint32_t share)
{
	if (!share || share > GL_MAX_SHARES)
		return;
	uint32_t device = gl_load_relaxed(&gl_self.usage->share[share - 1].device);
	lock();
	if (gl_self.share_count[share - 1] && --gl_self.share_count[share - 1] == 0)
		leave(share - 1);
	unlock();
	for (int i = 0; i < gl_self.gpu_count; i++)
		if (gl_self.gpu[i].index == device)
			gl_memory_freed(&gl_self.gpu[i]);
}

uint64_t gl_imported_bytes(const struct gl_gpu *gpu)
{
	uint64_t adopted = GL_LIKELY(!gl_load_relaxed(&gl_self.usage->header.shares_used))
				   ? 0
				   : gl_share_adopted(gl_self.usage, gpu->index, (uint32_t)gl_self.slot);
	return gl_load_relaxed(&gpu->imported_bytes) + adopted;
}

uint64_t gl_shared_bytes(uint32_t share)
{
	return share && share <= GL_MAX_SHARES ? gl_load_relaxed(&gl_self.usage->share[share - 1].bytes) : 0;
}
