/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes and gives device memory as its standard input says, one answer line for each line:
 *
 *   take KIND BYTES      result, milliseconds, signals handled meanwhile
 *   behind KIND BYTES    the same in a thread of its own; answers at once, and again when done
 *   give                 the last that was taken
 *   capture KIND BYTES   takes while a stream is being captured: result, milliseconds
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "any_memory.h"


static struct any_place place;
static struct any_piece pieces[64];
static int count;
static atomic_int signals;

struct order {
	enum any_kind kind;
	size_t bytes;
};

static void count_signal(int number)
{
	(void)number;
	signals++;
}

static CUresult take(struct order order, double *ms)
{
	struct any_piece piece;
	uint64_t begin = any_now_ns();
	CUresult r = any_take(&place, &piece, order.kind, order.bytes);
	*ms = (double)(any_now_ns() - begin) / 1e6;
	if (r == CUDA_SUCCESS)
		pieces[count++] = piece;
	return r;
}

static void *behind(void *argument)
{
	struct order order = *(struct order *)argument;
	double ms;
	cuCtxSetCurrent(place.context);
	CUresult r = take(order, &ms);
	printf("%d %.1f\n", r, ms);
	return NULL;
}

static void capture(struct order order)
{
	CUstream stream;
	CUgraph graph;
	double ms = 0;
	CUresult r = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	r = r ? r : cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	r = r ? r : take(order, &ms);
	cuStreamEndCapture(stream, &graph);
	printf("%d %.1f\n", r, ms);
}

int main(void)
{
	char line[128], what[16];
	int kind;
	struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
	setvbuf(stdout, NULL, _IOLBF, 0);
	sigaction(SIGUSR1, &action, NULL);
	printf("%d\n", any_begin(&place));
	while (fgets(line, sizeof line, stdin)) {
		static struct order order;
		pthread_t thread;
		double ms;
		order = (struct order){ANY_NONE, 0};
		if (sscanf(line, "%15s %d %zu", what, &kind, &order.bytes) < 1)
			continue;
		order.kind = (enum any_kind)kind;
		if (strcmp(what, "take") == 0) {
			CUresult r = take(order, &ms);
			printf("%d %.1f %d\n", r, ms, signals);
		} else if (strcmp(what, "behind") == 0) {
			pthread_create(&thread, NULL, behind, &order);
			printf("0\n");
		} else if (strcmp(what, "give") == 0) {
			printf("%d\n", count ? any_give(&place, &pieces[--count], 1) : -1);
		} else if (strcmp(what, "capture") == 0) {
			capture(order);
		}
	}
	return 0;
}
