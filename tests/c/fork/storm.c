/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread takes and gives back memory without a pause while the main thread forks children that look at their
 * quota and exit.  No child may hang, whatever lock the other thread held at that moment.  Usage: storm CHILDREN
 */
#include <pthread.h>

#include "any_memory.h"

enum { PIECES = 8 };
static struct any_place place;
static volatile bool stop;
static CUresult went_wrong;

static void *busy(void *unused)
{
	struct any_piece pieces[PIECES] = {{ANY_NONE, 0}};
	uint64_t seed = 99;
	(void)unused;
	went_wrong = cuCtxSetCurrent(place.context);
	while (!stop && !went_wrong)
		went_wrong = any_step(&place, pieces, PIECES, 1 << 20, &seed);
	return NULL;
}

static void be_child(void)
{
	CUdeviceptr p;
	size_t free, total;
	CUresult asked = cuMemGetInfo_v2(&free, &total), taken = cuMemAlloc_v2(&p, 1000);
	/* The driver of a forked child says that it was never initialised; nothing else will do. */
	_exit(asked == 3 && taken == 3 ? 0 : 1);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	int hung = 0, wrong = 0, children = argc > 1 ? atoi(argv[1]) : 10;
	start_card(argc, argv);
	OK(any_begin(&place));
	pthread_create(&thread, NULL, busy, NULL);
	for (int i = 0; i < children && !hung; i++) {
		pid_t pid = fork();
		int status = 0, tries = 0;
		if (pid == 0)
			be_child();
		while (waitpid(pid, &status, WNOHANG) == 0 && tries++ < 50000)
			usleep(tries < 20 ? 50 : 100);
		if (tries >= 50000) {
			hung++;
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
		} else if (status) {
			wrong++;
		}
	}
	stop = true;
	pthread_join(thread, NULL);
	OK(went_wrong);
	if (hung || wrong)
		FAIL("%d children hung, %d answered something else", hung, wrong);
	for (int i = 0, living = 0; i < GL_MAX_SLOTS; i++)
		if (books()->slot[i].generation % 2 && books()->slot[i].account[0].bytes && ++living > 1)
			FAIL("slot %d has bytes of a child", i);
	return failures != 0;
}
