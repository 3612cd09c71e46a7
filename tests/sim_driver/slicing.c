/* SPDX-License-Identifier: Apache-2.0
 *
 * Two processes that keep the card busy get half of it each; one alone gets all of it.  A short request
 * beside a busy process takes longer than alone, as slices are served in turn.  Tolerances are wide
 * because the machine that simulates has other work too.
 */
#include "driver.h"

/* Launch 1 ms kernels for `ms` and tell how many finished. */
static int saturate(double ms)
{
	CUfunction f;
	int n = 0;
	start();
	f = kernel("gpulimit_spin");
	for (double end = now_ms() + ms; now_ms() < end; n += 4) {
		for (int i = 0; i < 4; i++)
			OK(spin(f, NULL, 1000000, 0));
		OK(cuStreamSynchronize(NULL));
	}
	return n;
}

static double request_ms(void)
{
	start();
	CUfunction f = kernel("gpulimit_spin");
	OK(cuCtxSynchronize());
	double begin = now_ms();
	for (int i = 0; i < 20; i++)
		OK(spin(f, NULL, 140000, 0));
	OK(cuStreamSynchronize(NULL));
	return now_ms() - begin;
}

static double saturate_a_while(void) { return saturate(800); }

struct child {
	pid_t pid;
	int fd;
};

/* The parent never uses the card itself: a process that did could not fork children that do. */
static struct child start_child(double (*work)(void))
{
	int ends[2];
	if (pipe(ends))
		exit(1);
	pid_t pid = fork();
	if (pid) {
		close(ends[1]);
		return (struct child){ pid, ends[0] };
	}
	double answer = work();
	if (write(ends[1], &answer, sizeof(answer)) != sizeof(answer))
		_exit(1);
	fflush(stdout);
	_exit(failures != 0);
}

static double answer_of(struct child child)
{
	double answer = 0;
	int status;
	if (read(child.fd, &answer, sizeof(answer)) != sizeof(answer))
		FAIL("no answer from a child");
	close(child.fd);
	waitpid(child.pid, &status, 0);
	SAME(0, status);
	return answer;
}

int main(void)
{
	WITHIN(700, answer_of(start_child(saturate_a_while)), 804);
	struct child first = start_child(saturate_a_while), second = start_child(saturate_a_while);
	double a = answer_of(first), b = answer_of(second);
	WITHIN(700, a + b, 830);
	WITHIN(0.42, a / (a + b), 0.58);
	double quiet = answer_of(start_child(request_ms));
	WITHIN(2.79, quiet, 4);
	first = start_child(saturate_a_while);
	usleep(300000);
	double busy = answer_of(start_child(request_ms));
	WITHIN(quiet * 1.4, busy, quiet * 4);
	answer_of(first);
	return done();
}
