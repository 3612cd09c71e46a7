/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of blocks against a plain array that says what should be in it; then a million blocks, and threads.
 * Prints one line per failure; exit status 0: all held.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/blocks.c"

struct gl_process gl_self;

#define CHECK(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			printf("line %d: %s\n", __LINE__, #condition);          \
			exit(1);                                                \
		}                                                               \
	} while (0)

enum { KEYS = 3000, STEPS = 400000, MANY = 1000000, THREADS = 4 };

static uint64_t state = 88172645463325252u;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

/* Addresses as a driver gives them: multiples of 2 MiB or of 512, small handles too. */
static uint64_t key_of(unsigned int n)
{
	return n % 3 == 0 ? 0x7f0000000000u + ((uint64_t)n << 21) : n % 3 == 1 ? 0x302000000u + ((uint64_t)n << 9) : n + 1;
}

struct sum {
	uint64_t bytes, count, drop_every;
};

static bool add_up(struct gl_block *block, void *arg)
{
	struct sum *sum = arg;
	sum->bytes += block->bytes;
	sum->count++;
	return sum->drop_every && block->bytes % sum->drop_every == 0;
}

static bool double_it(struct gl_block *block, void *unused)
{
	(void)unused;
	block->bytes *= 2;
	return false;
}

static uint64_t model[2][KEYS]; /* bytes; 0: absent */

static void compare_all(void)
{
	uint64_t bytes = 0, count = 0;
	struct sum sum = {0, 0, 0};
	for (int space = 0; space < 2; space++)
		for (unsigned int n = 0; n < KEYS; n++) {
			struct gl_block block;
			bool there = gl_block_get((enum gl_space)(space + 1), key_of(n), &block);
			CHECK(there == (model[space][n] != 0));
			CHECK(!there || block.bytes == model[space][n]);
			bytes += model[space][n];
			count += model[space][n] != 0;
		}
	gl_block_each(add_up, &sum);
	CHECK(sum.bytes == bytes && sum.count == count);
}

static void drop_some(uint64_t every)
{
	struct sum sum = {0, 0, every};
	gl_block_each(add_up, &sum);
	for (int space = 0; space < 2; space++)
		for (unsigned int n = 0; n < KEYS; n++)
			if (model[space][n] % every == 0)
				model[space][n] = 0;
}

static void random_steps(void)
{
	for (int step = 0; step < STEPS; step++) {
		unsigned int n = (unsigned int)(next() % KEYS), space = (unsigned int)(next() % 2);
		struct gl_block out, old, block = {.key = key_of(n), .space = space + 1, .bytes = next() % 1000 + 1};
		switch (next() % 4) {
		case 0:
		case 1:
			CHECK(gl_block_put(&block, &old) == 0);
			CHECK((old.space != 0) == (model[space][n] != 0));
			CHECK(!old.space || old.bytes == model[space][n]);
			model[space][n] = block.bytes;
			break;
		case 2:
			CHECK(gl_block_take((enum gl_space)(space + 1), block.key, &out) == (model[space][n] != 0));
			CHECK(!model[space][n] || out.bytes == model[space][n]);
			model[space][n] = 0;
			break;
		default:
			CHECK(gl_block_update((enum gl_space)(space + 1), block.key, double_it, NULL) == (model[space][n] != 0));
			model[space][n] *= 2;
		}
		if (step % 40000 == 0) {
			compare_all();
			drop_some(7);
			compare_all();
		}
	}
	drop_some(1);
	compare_all();
}

static void many(void)
{
	struct sum sum = {0, 0, 0};
	for (uint64_t i = 1; i <= MANY; i++)
		CHECK(gl_block_put(&(struct gl_block){.key = i << 9, .space = 1, .bytes = 1}, NULL) == 0);
	gl_block_each(add_up, &sum);
	CHECK(sum.count == MANY && sum.bytes == MANY);
	for (uint64_t i = 1; i <= MANY; i++) {
		struct gl_block out;
		CHECK(gl_block_take(GL_SPACE_POINTER, i << 9, &out) && out.key == i << 9);
	}
	sum = (struct sum){0, 0, 0};
	gl_block_each(add_up, &sum);
	CHECK(sum.count == 0);
}

/* Each thread owns keys of its own and passes others' by: nothing may get lost. */
static void *work(void *arg)
{
	uint64_t own = (uint64_t)(uintptr_t)arg;
	for (int round = 0; round < 200; round++) {
		struct gl_block out;
		for (uint64_t i = 0; i < 500; i++)
			CHECK(gl_block_put(&(struct gl_block){.key = (i << 24) + (own << 9), .space = 1, .bytes = own}, NULL) == 0);
		for (uint64_t i = 0; i < 500; i++)
			CHECK(gl_block_take(GL_SPACE_POINTER, (i << 24) + (own << 9), &out) && out.bytes == own);
	}
	return NULL;
}

int main(void)
{
	struct gl_block out;
	CHECK(!gl_block_get(GL_SPACE_POINTER, 1, &out) && !gl_block_take(GL_SPACE_POINTER, 1, &out));
	errno = 77;
	random_steps();
	many();
	pthread_t thread[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, work, (void *)(i + 1));
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	CHECK(errno == 77);
	puts("ok");
	return 0;
}
