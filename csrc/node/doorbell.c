/* SPDX-License-Identifier: Apache-2.0 */
#include "node/doorbell.h"

#include <limits.h>

#include "base/sys.h"
#include "node/sigbus_guard.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
enum { SIZE_U32 = 2, POLL_NS = 2000000 };

/* The kernel's struct futex_waitv, which older headers lack. */
struct wait_for {
	uint64_t value, address;
	uint32_t flags, reserved;
};

struct looking {
	const struct gl_bell *bells;
	uint32_t count;
};

static int look(void *argument)
{
	const struct looking *l = argument;
	for (uint32_t i = 0; i < l->count; i++)
		if (!l->bells[i].ignored && gl_load_acquire(l->bells[i].word) != l->bells[i].seen)
			return -EAGAIN;
	return -ETIMEDOUT;
}

static int poll_until(const struct gl_bell *bells, uint32_t count, uint64_t deadline_ns)
{
	struct looking l = {bells, count};
	for (;;) {
		int r = gl_guarded(look, &l);
		uint64_t now = gl_now_ns();
		if (r != -ETIMEDOUT || now >= deadline_ns)
			return r;
		uint64_t left = deadline_ns - now;
		struct timespec pause = {0, left < POLL_NS ? (long)left : POLL_NS};
		(void)gl_syscall(SYS_nanosleep, &pause, NULL);
	}
}

static int wait_until(const struct gl_bell *bells, uint32_t count, uint64_t deadline_ns, int poll)
{
	struct wait_for waits[GL_MAX_BELLS];
	uint32_t heard = 0;
	for (uint32_t i = 0; i < count; i++)
		if (!bells[i].ignored)
			waits[heard++] = (struct wait_for){bells[i].seen, (uintptr_t)bells[i].word, SIZE_U32, 0};
	if (poll || heard == 0)
		return poll_until(bells, count, deadline_ns);
	struct timespec until = gl_timespec(deadline_ns);
	int r = (int)gl_syscall(SYS_futex_waitv, waits, heard, 0, &until, CLOCK_MONOTONIC);
	/* EPERM: sandboxes that do not know the call. */
	return r == -ENOSYS || r == -EPERM ? poll_until(bells, count, deadline_ns) : r;
}

static bool any_expired(const struct gl_turn_watch *watches, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (watches[i].expired)
			return true;
	return false;
}

static uint64_t next_poll(const struct gl_turn_watch *watches, uint32_t count, uint64_t deadline_ns)
{
	for (uint32_t i = 0; i < count; i++)
		if (watches[i].usage && watches[i].next_ns < deadline_ns)
			deadline_ns = watches[i].next_ns;
	return deadline_ns;
}

int gl_bells_wait(const struct gl_bell *bells, uint32_t count, struct gl_turn_watch *watches, uint32_t watch_count,
		  uint64_t deadline_ns, int poll)
{
	int r = -ETIMEDOUT;
	if (count > GL_MAX_BELLS)
		return -EINVAL;
	while (r == -ETIMEDOUT && !any_expired(watches, watch_count)) {
		r = wait_until(bells, count, next_poll(watches, watch_count, deadline_ns), poll);
		uint64_t now = gl_now_ns();
		for (uint32_t i = 0; i < watch_count; i++)
			gl_turn_watch_poll(&watches[i], now);
		if (now >= deadline_ns)
			break;
	}
	return r;
}

void gl_bells_rang(const struct gl_bell *bells, uint32_t count, uint8_t *rang)
{
	for (uint32_t i = 0; i < count; i++) {
		struct gl_bell bell = {bells[i].word, bells[i].seen, 0};
		struct looking one = {&bell, 1};
		rang[i] = gl_guarded(look, &one) != -ETIMEDOUT;
	}
}

void gl_bell_ring(uint32_t *word)
{
	__atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
	gl_futex_wake(word, INT_MAX);
}
