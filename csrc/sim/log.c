/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of the simulated driver on stderr.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>

#include "sim.h"

void sim_complain(const char *format, ...)
{
	char line[600];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	dprintf(2, "gpulimit-sim: %s\n", line);
}
