/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target where there is no libFuzzer: the files named, then random changes of them for -t seconds.
 * A finding is left in the file "crash-input" of the working directory.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT_BYTES = 512, SEEDS = 256 };
struct input {
	size_t size;
	uint8_t data[MAX_INPUT_BYTES];
};
static struct input seeds[SEEDS], now;
static size_t seed_count;
static uint64_t state = 88172645463325252u;

static uint64_t next_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Called by the sanitizers before they end the program. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void keep_input(void)
{
	FILE *file = fopen("crash-input", "wb");

	if (!file)
		return;
	fwrite(now.data, 1, now.size, file);
	fclose(file);
	fprintf(stderr, "input left in crash-input\n");
}

static void on_abort(int signal_number)
{
	keep_input();
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

static void mutate(void)
{
	static const char pieces[][8] = {"GiB", "%", "=", ",", "*=", "GPU-", "MIG-", "{\"", "\":", "}", "0", ".", "99999", " ", "\r\n", "\n", ": ", "HTTP/1.", "200"};
	size_t changes = 1 + next_random() % 6;

	now = seeds[next_random() % seed_count];
	while (changes--) {
		size_t at = now.size ? next_random() % now.size : 0, length;
		const char *piece = pieces[next_random() % (sizeof(pieces) / sizeof(*pieces))];
		switch (next_random() % 5) {
		case 0: /* another byte */
			if (now.size)
				now.data[at] = (uint8_t)next_random();
			break;
		case 1: /* a piece of the grammar */
			length = strlen(piece);
			if (now.size + length > MAX_INPUT_BYTES)
				break;
			memmove(now.data + at + length, now.data + at, now.size - at);
			memcpy(now.data + at, piece, length);
			now.size += length;
			break;
		case 2: /* less */
			now.size = at;
			break;
		case 3: /* the middle out */
			length = now.size - at > 4 ? next_random() % 4 : 0;
			memmove(now.data + at, now.data + at + length, now.size - at - length);
			now.size -= length;
			break;
		default: { /* the end of another */
			const struct input *other = &seeds[next_random() % seed_count];
			length = other->size < MAX_INPUT_BYTES - at ? other->size : MAX_INPUT_BYTES - at;
			memcpy(now.data + at, other->data, length);
			now.size = at + length;
		}
		}
	}
}

static void load(const char *path)
{
	FILE *file = fopen(path, "rb");

	if (!file) {
		perror(path);
		exit(2);
	}
	if (seed_count < SEEDS)
		seeds[seed_count].size = fread(seeds[seed_count].data, 1, MAX_INPUT_BYTES, file), seed_count++;
	fclose(file);
}

int main(int argc, char **argv)
{
	time_t until = time(NULL);
	unsigned long long runs = 0;
	int option;

	while ((option = getopt(argc, argv, "t:s:")) != -1) {
		if (option == 't')
			until = time(NULL) + atoi(optarg);
		else if (option == 's')
			state = strtoull(optarg, NULL, 0) | 1;
		else
			return 2;
	}
	signal(SIGABRT, on_abort);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(keep_input);
	for (int i = optind; i < argc; i++)
		load(argv[i]);
	for (size_t i = 0; i < seed_count; i++, runs++) {
		now = seeds[i];
		LLVMFuzzerTestOneInput(now.data, now.size);
	}
	if (!seed_count)
		seed_count = 1;
	for (; time(NULL) < until; runs++) {
		mutate();
		LLVMFuzzerTestOneInput(now.data, now.size);
	}
	printf("%llu inputs, no finding\n", runs);
	return 0;
}
