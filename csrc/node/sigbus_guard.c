/* SPDX-License-Identifier: Apache-2.0 */
#include "node/sigbus_guard.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

static _Thread_local sigjmp_buf *landing;
static struct sigaction earlier;

static void on_bus_error(int number)
{
	if (landing)
		siglongjmp(*landing, 1);
	/* The fault is not ours: restores the previous handler and lets the access run again, which usually ends the
	 * process. */
	(void)sigaction(number, &earlier, NULL);
}

static void install(void)
{
	/* SA_NODEFER: the jump leaves the handler without unblocking the signal. */
	struct sigaction action = {.sa_handler = on_bus_error, .sa_flags = SA_NODEFER};
	(void)sigemptyset(&action.sa_mask);
	(void)sigaction(SIGBUS, &action, &earlier);
}

int gl_guarded(int (*work)(void *argument), void *argument)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	sigjmp_buf here;
	(void)pthread_once(&once, install);
	if (sigsetjmp(here, 0)) {
		landing = NULL;
		return -EFAULT;
	}
	landing = &here;
	int result = work(argument);
	landing = NULL;
	return result;
}
