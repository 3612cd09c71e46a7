/* SPDX-License-Identifier: Apache-2.0
 *
 * Time.  The card's clock is CLOCK_MONOTONIC, which all processes share, in nanoseconds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <time.h>

#include "machine.h"

#define SPIN_NS 50000ull /* a sleep wakes late by about this much; the rest is spun away */

uint64_t sim_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

void sim_sleep_until(uint64_t ns)
{
	int saved = errno;

	while (ns > sim_now() + SPIN_NS) {
		uint64_t wake = ns - SPIN_NS;
		struct timespec ts = {
			.tv_sec = (time_t)(wake / 1000000000ull),
			.tv_nsec = (long)(wake % 1000000000ull),
		};
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
	}
	while (sim_now() < ns)
		;
	errno = saved;
}
