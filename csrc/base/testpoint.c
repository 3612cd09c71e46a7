/* SPDX-License-Identifier: Apache-2.0 */
#include "base/testpoint.h"

#ifdef GL_TEST_POINTS
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"

void gl_test_point(const char *name)
{
	static uint32_t passes;
	const char *spec = getenv("GPULIMIT_TEST_POINT");
	size_t length = strlen(name);
	if (!spec || strncmp(spec, name, length) != 0 || spec[length] != ':')
		return;
	char *rest;
	unsigned long nth = strtoul(spec + length + 1, &rest, 10);
	int number = *rest == ':' ? atoi(rest + 1) : SIGKILL;
	if (gl_add_relaxed(&passes, 1) + 1 == nth)
		(void)gl_syscall(SYS_kill, gl_getpid(), number);
}
#else
typedef int gl_no_test_points; /* ISO C forbids an empty file */
#endif
