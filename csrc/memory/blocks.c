/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process holds, by address or handle: an open-addressing hash table in 16 shards, each with a lock of
 * its own that is held for a few instructions (and while a shard doubles).  All threads enter.  The memory comes
 * from mmap, never malloc: a hook may run inside the program's allocator.  The table hangs off gl_self, which fork
 * wipes, so a child starts with none; the parent's pages stay behind in the child, unused.
 *
 * A deleted cell is closed by moving later cells of its run back, so a table that lives for days through
 * millions of allocations looks no different from a fresh one.
 */
#include <string.h>

#include "shim.h"

#define SHARDS 16
#define FIRST_CELLS 64

struct shard {
	struct gl_lock lock;
	uint64_t mask; /* cells - 1; cells is a power of two */
	uint64_t used;
	struct gl_block *cell; /* space 0: empty.  At least a quarter of the cells is. */
} __attribute__((aligned(64)));

struct gl_blocks {
	struct shard shard[SHARDS];
};

static void *map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

/* NULL: no block was recorded yet, or there was no memory for the table. */
static struct gl_blocks *table(bool make)
{
	struct gl_blocks *blocks = gl_load_acquire(&gl_self.blocks), *none = NULL;
	if (GL_LIKELY(blocks != NULL) || !make)
		return blocks;
	int kept = errno;
	blocks = map(sizeof *blocks);
	if (blocks && !__atomic_compare_exchange_n(&gl_self.blocks, &none, blocks, false, __ATOMIC_ACQ_REL,
						   __ATOMIC_ACQUIRE)) {
		munmap(blocks, sizeof *blocks);
		blocks = none;
	}
	errno = kept;
	return blocks;
}

/* Addresses end in many zero bits; multiplying and folding spreads them over both the shard and the cell. */
static uint64_t hash(uint32_t space, uint64_t key)
{
	uint64_t h = (key ^ ((uint64_t)space << 58)) * UINT64_C(0x9e3779b97f4a7c15);
	h ^= h >> 32;
	h *= UINT64_C(0xd6e8feb86659fd93);
	return h ^ (h >> 32);
}

static uint64_t home(const struct shard *shard, const struct gl_block *block)
{
	return (hash(block->space, block->key) >> 4) & shard->mask;
}

static struct shard *shard_of(struct gl_blocks *blocks, uint64_t h)
{
	return &blocks->shard[h & (SHARDS - 1)];
}

/* The block's cell, or the empty one that ends its run. */
static struct gl_block *find(struct shard *shard, uint64_t h, uint32_t space, uint64_t key)
{
	uint64_t at = (h >> 4) & shard->mask;
	while (shard->cell[at].space && (shard->cell[at].key != key || shard->cell[at].space != space))
		at = (at + 1) & shard->mask;
	return &shard->cell[at];
}

static bool grow(struct shard *shard)
{
	uint64_t old_cells = shard->cell ? shard->mask + 1 : 0, cells = old_cells ? old_cells * 2 : FIRST_CELLS;
	struct gl_block *old = shard->cell;
	int kept = errno;
	struct gl_block *wider = map(cells * sizeof *wider);
	if (wider) {
		shard->cell = wider;
		shard->mask = cells - 1;
		for (uint64_t i = 0; i < old_cells; i++)
			if (old[i].space)
				*find(shard, hash(old[i].space, old[i].key), old[i].space, old[i].key) = old[i];
		if (old)
			munmap(old, old_cells * sizeof *old);
	}
	errno = kept;
	return wider != NULL;
}

/* Empties a cell and moves each later block of the run back, unless that would put it before its home. */
static void close_cell(struct shard *shard, uint64_t hole)
{
	for (uint64_t at = (hole + 1) & shard->mask; shard->cell[at].space; at = (at + 1) & shard->mask) {
		uint64_t from_home = (at - home(shard, &shard->cell[at])) & shard->mask;
		if (from_home >= ((at - hole) & shard->mask)) {
			shard->cell[hole] = shard->cell[at];
			hole = at;
		}
	}
	memset(&shard->cell[hole], 0, sizeof shard->cell[hole]);
	shard->used--;
}

int gl_block_put(const struct gl_block *block, struct gl_block *old)
{
	struct gl_blocks *blocks = table(true);
	if (!blocks)
		return -ENOMEM;
	uint64_t h = hash(block->space, block->key);
	struct shard *shard = shard_of(blocks, h);
	int r = 0;
	gl_lock(&shard->lock);
	if (!shard->cell || (shard->used + 1) * 4 > (shard->mask + 1) * 3)
		r = grow(shard) ? 0 : -ENOMEM;
	if (r == 0) {
		struct gl_block *cell = find(shard, h, block->space, block->key);
		if (old)
			*old = *cell;
		shard->used += !cell->space;
		*cell = *block;
	}
	gl_unlock(&shard->lock);
	return r;
}

bool gl_block_update(enum gl_space space, uint64_t key, bool (*fn)(struct gl_block *block, void *arg), void *arg)
{
	struct gl_blocks *blocks = table(false);
	if (!blocks)
		return false;
	uint64_t h = hash(space, key);
	struct shard *shard = shard_of(blocks, h);
	gl_lock(&shard->lock);
	struct gl_block *cell = shard->cell ? find(shard, h, space, key) : NULL;
	bool found = cell && cell->space;
	if (found && fn(cell, arg))
		close_cell(shard, (uint64_t)(cell - shard->cell));
	gl_unlock(&shard->lock);
	return found;
}

static bool count_up(struct gl_block *block, void *unused)
{
	(void)unused;
	block->count++;
	return false;
}

static bool copy_and_count_down(struct gl_block *block, void *out)
{
	*(struct gl_block *)out = *block;
	return --block->count == 0;
}

bool gl_block_add_reference(enum gl_space space, uint64_t key)
{
	return gl_block_update(space, key, count_up, NULL);
}

bool gl_block_drop_reference(enum gl_space space, uint64_t key, struct gl_block *out)
{
	return gl_block_update(space, key, copy_and_count_down, out);
}

static bool copy(struct gl_block *block, void *out)
{
	*(struct gl_block *)out = *block;
	return false;
}

static bool copy_and_drop(struct gl_block *block, void *out)
{
	*(struct gl_block *)out = *block;
	return true;
}

bool gl_block_get(enum gl_space space, uint64_t key, struct gl_block *out)
{
	return gl_block_update(space, key, copy, out);
}

bool gl_block_take(enum gl_space space, uint64_t key, struct gl_block *out)
{
	return gl_block_update(space, key, copy_and_drop, out);
}

/* Starts behind an empty cell, so that no run wraps round the end.  Removing a cell then only moves blocks that are
 * still to come, and each block is seen once. */
static void each_in(struct shard *shard, bool (*fn)(struct gl_block *block, void *arg), void *arg)
{
	uint64_t start = 0;
	while (shard->cell[start].space)
		start++;
	for (uint64_t i = 1; i <= shard->mask; i++) {
		uint64_t at = (start + i) & shard->mask;
		while (shard->cell[at].space && fn(&shard->cell[at], arg))
			close_cell(shard, at);
	}
}

void gl_block_each(bool (*fn)(struct gl_block *block, void *arg), void *arg)
{
	struct gl_blocks *blocks = table(false);
	for (int i = 0; blocks && i < SHARDS; i++) {
		struct shard *shard = &blocks->shard[i];
		gl_lock(&shard->lock);
		if (shard->used)
			each_in(shard, fn, arg);
		gl_unlock(&shard->lock);
	}
}
