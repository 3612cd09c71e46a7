/* SPDX-License-Identifier: Apache-2.0
 *
 * Kills processes of a tenant while others of it go on.  Survivors take and give back memory of all kinds; victims do
 * the same and are killed at a chosen place inside the library, or at any moment.  At the end the books say what the
 * card says, to the byte; meanwhile they never passed the quota and no call of a survivor took a second.
 *
 * Usage: rounds ROUNDS SURVIVORS SEED [POINT...]
 */
#include "any_memory.h"

enum { PIECES = 12, MAX_PIECE_BYTES = 1 << 20, STEPS = 400, SLOW_NS = 1000000000 };

static struct shared {
	uint32_t stop, holding, leave, errors, killed_at_point, killed_at_random, ended;
	int32_t error;
	uint64_t longest_ns, steps, most_booked;
} *shared;

static void note_longest(uint64_t ns)
{
	uint64_t seen = shared->longest_ns;
	while (ns > seen && !__atomic_compare_exchange_n(&shared->longest_ns, &seen, ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

static void note_error(CUresult r)
{
	shared->error = r;
	__atomic_fetch_add(&shared->errors, 1, __ATOMIC_RELAXED);
}

static void survive(int number, uint64_t seed)
{
	struct any_place place;
	struct any_piece pieces[PIECES] = {{ANY_NONE, 0}};
	CUdeviceptr kept;
	size_t free, total;
	CUresult r = any_begin(&place);
	while (r == CUDA_SUCCESS && !__atomic_load_n(&shared->stop, __ATOMIC_ACQUIRE)) {
		uint64_t start = any_now_ns();
		r = any_step(&place, pieces, PIECES, MAX_PIECE_BYTES, &seed);
		note_longest(any_now_ns() - start);
		__atomic_fetch_add(&shared->steps, 1, __ATOMIC_RELAXED);
	}
	r = r ? r : any_end(&place, pieces, PIECES);
	r = r ? r : cuMemAlloc_v2(&kept, 1000003u * (unsigned)(number + 1));
	if (r)
		note_error(r);
	__atomic_fetch_add(&shared->holding, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&shared->leave, __ATOMIC_ACQUIRE)) {
		usleep(10000);
		cuMemGetInfo_v2(&free, &total); /* gives back what the dead held */
	}
	_exit(0);
}

static void be_victim(uint64_t seed)
{
	struct any_place place;
	struct any_piece pieces[PIECES] = {{ANY_NONE, 0}};
	CUresult r = any_begin(&place);
	for (int i = 0; i < STEPS && r == CUDA_SUCCESS; i++)
		r = any_step(&place, pieces, PIECES, MAX_PIECE_BYTES, &seed);
	/* The quota may be full of others' memory while the victim makes its pool or context. */
	if (r && r != CUDA_ERROR_OUT_OF_MEMORY)
		note_error(r);
	_exit(0);
}

static pid_t start_victim(const char *point, uint64_t *seed)
{
	char spec[128];
	uint64_t own = any_random(seed), nth = any_random(seed) % 60 + 1;
	pid_t pid = fork();
	if (pid == 0) {
		snprintf(spec, sizeof spec, "%s:%llu:%d", point ? point : "none", (unsigned long long)nth, SIGKILL);
		setenv("GPULIMIT_TEST_POINT", spec, 1);
		be_victim(own);
	}
	return pid;
}

static void round_of(int number, char **points, int count, uint64_t *seed)
{
	const char *point = count && number % 2 == 0 ? points[number / 2 % count] : NULL;
	int status;
	pid_t pid = start_victim(point, seed);
	if (!point) {
		usleep((useconds_t)(any_random(seed) % 12000));
		kill(pid, SIGKILL);
	}
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		(*(point ? &shared->killed_at_point : &shared->killed_at_random))++;
	else if (WIFEXITED(status))
		shared->ended++;
	else
		FAIL("a victim ended with status %x", status);
	uint64_t now = booked();
	if (now > shared->most_booked)
		shared->most_booked = now;
	if (now > books()->device[0].memory_limit_bytes)
		FAIL("%llu bytes booked", (unsigned long long)now);
	if (card_used() > books()->device[0].memory_limit_bytes)
		FAIL("the card holds more than the quota");
}

static int slots_in_use(void)
{
	int living = 0;
	for (int i = 0; i < GL_MAX_SLOTS; i++)
		living += (int)(__atomic_load_n(&books()->slot[i].generation, __ATOMIC_ACQUIRE) % 2);
	return living;
}

static void wait_for(const uint32_t *word, uint32_t value, const char *what)
{
	for (int i = 0; i < 1000 && __atomic_load_n(word, __ATOMIC_ACQUIRE) < value; i++)
		usleep(10000);
	if (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value)
		FAIL("%s: %u of %u", what, *word, value);
}

int main(int argc, char **argv)
{
	start_card(argc, argv);
	if (argc < 4)
		return 2;
	int rounds = atoi(argv[1]), survivors = atoi(argv[2]);
	uint64_t seed = strtoull(argv[3], NULL, 0) * 977 + 1, kept = 0;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < survivors; i++) {
		kept += 1000003u * (unsigned)(i + 1);
		if (fork() == 0)
			survive(i, any_random(&seed) + (uint64_t)i);
	}
	for (int i = 0; i < 500 && shared->steps < 10; i++)
		usleep(10000);
	for (int i = 0; i < rounds; i++)
		round_of(i, argv + 4, argc - 4, &seed);
	__atomic_store_n(&shared->stop, 1, __ATOMIC_RELEASE);
	wait_for(&shared->holding, (uint32_t)survivors, "survivors holding");
	for (int i = 0; i < 300 && (slots_in_use() > survivors || booked() != kept || card_used() != kept); i++)
		usleep(10000);
	TRUE_BYTES(kept);
	if (slots_in_use() != survivors)
		FAIL("%d slots are in use", slots_in_use());
	if (shared->errors)
		FAIL("%u calls went wrong, one with %d", shared->errors, shared->error);
	if (shared->longest_ns > SLOW_NS)
		FAIL("a call took %.0f ms", (double)shared->longest_ns / 1e6);
	printf("killed_at_point %u killed_at_random %u ended %u steps %llu longest_ms %.1f most %llu\n",
	       shared->killed_at_point, shared->killed_at_random, shared->ended, (unsigned long long)shared->steps,
	       (double)shared->longest_ns / 1e6, (unsigned long long)shared->most_booked);
	__atomic_store_n(&shared->leave, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < survivors; i++) /* the card's child is left */
		wait(NULL);
	return failures != 0;
}
