/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks: every range of addresses the process got from the driver, sorted by address, and the host
 * memory behind it.  That memory is reserved but not used until touched, so 80 GiB cost nothing.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

static struct sim_block **blocks;
static size_t count, capacity;
static uint64_t next_id = 1;

/* The first block that starts above `addr`. */
static size_t above(uint64_t addr)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t mid = (low + high) / 2;
		if (blocks[mid]->addr <= addr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

struct sim_block *sim_block_with(uint64_t addr)
{
	/* Blocks may nest (a mapping inside its reserved range), so look back until one reaches here. */
	for (size_t at = above(addr); at > 0; at--) {
		struct sim_block *b = blocks[at - 1];
		if (addr - b->addr < b->bytes)
			return b;
		if (b->kind == SIM_RESERVED)
			break;
		if (b->kind != SIM_MAPPED)
			break;
	}
	return NULL;
}

struct sim_block *sim_block_at(uint64_t addr)
{
	struct sim_block *b = sim_block_with(addr);

	return b && b->addr == addr ? b : NULL;
}

struct sim_block *sim_block_add(const struct sim_block *block)
{
	if (count == capacity) {
		size_t more = capacity ? capacity * 2 : 256;
		struct sim_block **bigger = realloc(blocks, more * sizeof(struct sim_block *));
		if (!bigger)
			return NULL;
		blocks = bigger;
		capacity = more;
	}
	struct sim_block *copy = malloc(sizeof(*copy));
	if (!copy)
		return NULL;
	*copy = *block;
	copy->id = next_id++;
	size_t at = above(copy->addr);
	memmove(&blocks[at + 1], &blocks[at], (count - at) * sizeof(struct sim_block *));
	blocks[at] = copy;
	count++;
	return copy;
}

void sim_block_drop(struct sim_block *block)
{
	size_t at = above(block->addr);

	sim_words_gone(block);
	while (at > 0 && blocks[at - 1] != block)
		at--;
	if (!at)
		return;
	memmove(&blocks[at - 1], &blocks[at], (count - at) * sizeof(struct sim_block *));
	count--;
	free(block);
}

struct sim_block *sim_block_first(bool (*match)(const struct sim_block *, const void *), const void *what)
{
	for (size_t i = 0; i < count; i++)
		if (match(blocks[i], what))
			return blocks[i];
	return NULL;
}

uint64_t sim_page_up(uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return (bytes + page - 1) / page * page;
}

/* Where the 32-bit calls of CUDA 2 can point. */
static void *low_memory(uint64_t bytes, int prot, int flags)
{
#ifdef MAP_32BIT
	return mmap(NULL, bytes, prot, flags | MAP_32BIT, -1, 0);
#else
	for (uintptr_t at = 0x10000000; at + bytes < 0x80000000; at += 0x1000000) {
		void *got = mmap((void *)at, bytes, prot, flags, -1, 0);
		if (got != MAP_FAILED && (uintptr_t)got + bytes <= UINT32_MAX)
			return got;
		if (got != MAP_FAILED)
			munmap(got, bytes);
	}
	return MAP_FAILED;
#endif
}

uint64_t sim_backing(uint64_t bytes, bool low)
{
	int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *at = low ? low_memory(bytes, prot, flags) : mmap(NULL, bytes, prot, flags, -1, 0);

	if (at == MAP_FAILED)
		return 0;
	madvise(at, bytes, MADV_NOHUGEPAGE);
	return (uint64_t)(uintptr_t)at;
}

void sim_unback(uint64_t addr, uint64_t mapped_bytes)
{
	if (addr && mapped_bytes)
		munmap((void *)(uintptr_t)addr, mapped_bytes);
}

bool sim_range_ok(uint64_t addr, uint64_t bytes)
{
	while (bytes) {
		struct sim_block *block = sim_block_with(addr);
		if (!block || block->kind == SIM_RESERVED)
			return false;
		uint64_t here = block->addr + block->bytes - addr;
		if (here >= bytes)
			return true;
		addr += here;
		bytes -= here;
	}
	return true;
}
