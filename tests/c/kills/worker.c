/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes and gives back memory of all kinds at random and launches kernels, until SIGUSR1; then gives all back, takes BYTES,
 * and holds them until it is killed.  What it does it writes into FILE, so that somebody outside sees whether it goes on
 * and how far it is, also when it was killed.
 *
 * Usage: worker FILE SEED BYTES
 */
#include "any_memory.h"

enum { PIECES = 12, MAX_PIECE_BYTES = 1 << 20 };

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			  ".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";
static volatile sig_atomic_t settle;

/* As tests/daemon/test_kills.py reads it. */
struct progress {
	uint64_t steps, longest_ns, launches;
	int32_t error, holding;
};

static void on_signal(int number)
{
	(void)number;
	settle = 1;
}

static CUresult launch(CUfunction f, CUstream stream)
{
	uint64_t ns = 100000, out = 0;
	void *params[] = {&ns, &out};
	return cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

int main(int argc, char **argv)
{
	struct any_place place;
	struct any_piece pieces[PIECES] = {{ANY_NONE, 0}};
	CUmodule module;
	CUfunction spin;
	CUdeviceptr kept;
	if (argc != 4)
		return 2;
	int fd = open(argv[1], O_RDWR);
	uint64_t seed = strtoull(argv[2], NULL, 0) * 7919 + 1;
	struct progress *progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || progress == MAP_FAILED)
		return 2;
	signal(SIGUSR1, on_signal);
	CUresult r = any_begin(&place);
	r = r ? r : cuModuleLoadData(&module, ptx);
	r = r ? r : cuModuleGetFunction(&spin, module, "gpulimit_spin");
	while (r == CUDA_SUCCESS && !settle) {
		uint64_t begin = any_now_ns();
		r = any_step(&place, pieces, PIECES, MAX_PIECE_BYTES, &seed);
		for (uint64_t i = any_random(&seed) % 8; i && !r; i--, progress->launches++)
			r = launch(spin, place.stream);
		if (!r && any_random(&seed) % 16 == 0)
			r = cuStreamSynchronize(place.stream);
		uint64_t took = any_now_ns() - begin;
		progress->longest_ns = took > progress->longest_ns ? took : progress->longest_ns;
		__atomic_fetch_add(&progress->steps, 1, __ATOMIC_RELEASE);
	}
	r = r ? r : any_end(&place, pieces, PIECES);
	r = r ? r : cuMemAlloc_v2(&kept, strtoull(argv[3], NULL, 0));
	progress->error = r;
	__atomic_store_n(&progress->holding, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
}
