/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines on stderr.  Nothing is printed unless GPULIMIT_LOG asks for it (warn, info, debug), except for the one line
 * with the reason why nothing works: a refusal, or a quota that cannot hold a context.  At most LINES lines a process:
 * a library that floods a log hides its own messages.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

enum { LINES = 200 };

static enum gl_level read_level(void)
{
	const char *text = getenv("GPULIMIT_LOG");
	if (!text)
		return GL_ERROR;
	if (strcmp(text, "debug") == 0)
		return GL_DEBUG;
	if (strcmp(text, "info") == 0)
		return GL_INFO;
	return strcmp(text, "warn") == 0 ? GL_WARN : GL_ERROR;
}

/* Read once: the program may be changing its environment while the shim's thread logs. */
static enum gl_level wanted(void)
{
	uint32_t known = gl_load_relaxed(&gl_self.log_level);
	if (!known) {
		known = 1 + read_level();
		gl_store_relaxed(&gl_self.log_level, known);
	}
	return (enum gl_level)(known - 1);
}

void gl_log(enum gl_level level, const char *format, ...)
{
	static const char *const label[] = {"error", "warning", "info", "debug"};
	if (level > wanted())
		return;
	uint32_t line = gl_add_relaxed(&gl_self.log_lines, 1);
	if (line >= LINES)
		return;
	char text[512];
	int kept = errno;
	int head = snprintf(text, sizeof text, "gpulimit[%u] %s: ", gl_getpid(), label[level]);
	va_list list;
	va_start(list, format);
	vsnprintf(text + head, sizeof text - (size_t)head - 1, format, list);
	va_end(list);
	size_t length = strnlen(text, sizeof text - 1);
	text[length++] = '\n';
	(void)gl_syscall(SYS_write, 2, text, length);
	if (line == LINES - 1)
		(void)gl_syscall(SYS_write, 2, "gpulimit: further lines are left out\n", 37);
	errno = kept;
}
