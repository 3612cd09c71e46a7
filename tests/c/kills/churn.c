/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes of one tenant that take and give back memory of all kinds at random under a quota that they keep hitting.
 * Somebody outside samples: neither books nor card ever pass the quota, and at the end both say zero.
 *
 * Usage: churn PROCESSES STEPS-EACH SEED
 */
#include "any_memory.h"

enum { PIECES = 24, MAX_PIECE_BYTES = 2 << 20 };

static struct shared {
	uint32_t finished, leave, errors;
	int32_t error;
	uint64_t refused;
} *shared;

static void churn(uint64_t seed, long steps)
{
	struct any_place place;
	struct any_piece pieces[PIECES] = {{ANY_NONE, 0}};
	size_t free, total;
	CUresult r = any_begin(&place);
	for (long i = 0; i < steps && r == CUDA_SUCCESS; i++)
		r = any_step(&place, pieces, PIECES, MAX_PIECE_BYTES, &seed);
	r = r ? r : any_end(&place, pieces, PIECES);
	for (int i = 0; i < 3; i++) /* a lower overhead may be believed when seen twice */
		cuMemGetInfo_v2(&free, &total);
	if (r) {
		shared->error = r;
		__atomic_fetch_add(&shared->errors, 1, __ATOMIC_RELAXED);
	}
	for (int kind = 0; kind < GL_MEM_OVERHEAD && !r; kind++)
		if (booked_kind((enum gl_memory_kind)kind))
			__atomic_fetch_add(&shared->errors, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&shared->finished, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&shared->leave, __ATOMIC_ACQUIRE))
		usleep(10000);
	_exit(0);
}

int main(int argc, char **argv)
{
	start_card(argc, argv);
	if (argc != 4)
		return 2;
	uint32_t processes = (uint32_t)atoi(argv[1]);
	uint64_t most_booked = 0, most_used = 0, samples = 0, limit = 0;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (uint32_t i = 0; i < processes; i++)
		if (fork() == 0)
			churn(strtoull(argv[3], NULL, 0) * 1009 + i * 7919 + 1, atol(argv[2]));
	usleep(300000);
	while (__atomic_load_n(&shared->finished, __ATOMIC_ACQUIRE) < processes) {
		uint64_t used = card_used(), held = booked();
		limit = books()->device[0].memory_limit_bytes;
		most_used = used > most_used ? used : most_used;
		most_booked = held > most_booked ? held : most_booked;
		samples++;
		usleep(1000);
	}
	if (most_booked > limit || most_used > limit)
		FAIL("%llu booked, %llu on the card", (unsigned long long)most_booked, (unsigned long long)most_used);
	TRUE_BYTES(0);
	if (shared->errors)
		FAIL("%u processes went wrong, one with %d", shared->errors, shared->error);
	printf("samples %llu most_booked %llu most_used %llu refused %llu\n", (unsigned long long)samples,
	       (unsigned long long)most_booked, (unsigned long long)most_used,
	       (unsigned long long)books()->device[0].refused);
	__atomic_store_n(&shared->leave, 1, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < processes; i++)
		wait(NULL);
	return failures != 0;
}
