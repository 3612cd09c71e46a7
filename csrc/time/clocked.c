/* SPDX-License-Identifier: Apache-2.0
 *
 * Buckets that the wall clock fills.  An empty bucket continues when it holds resume_ns, so that small launches run in
 * bursts and not one by one.  Unused time is kept up to keep_ns.
 */
#include "time/gate.h"
#include "time/types.h"

#define REFILL_NS UINT64_C(100000)
enum { MAX_SLEEP_NS = 50000000, MIN_SLEEP_NS = 30000 };

uint64_t gl_really_spent(const uint64_t *spent_ns, const uint64_t *refund_ns)
{
	uint64_t spent = gl_load_relaxed(spent_ns), refund = refund_ns ? gl_load_relaxed(refund_ns) : 0;
	return spent > refund ? spent - refund : 0;
}

void gl_clocked_refill(struct gl_clocked b)
{
	uint64_t now = gl_now_ns(), at = gl_load_relaxed(b.at_ns);
	if (now - at < REFILL_NS || now < at)
		return;
	if (!__atomic_compare_exchange_n(b.at_ns, &at, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return; /* another thread or process does it */
	uint64_t granted = gl_load_relaxed(b.granted_ns), spent = gl_really_spent(b.spent_ns, b.refund_ns);
	uint64_t earned = at ? (now - at) / 100 * b.percent : b.keep_ns, ceiling = spent + b.keep_ns;
	if (granted + earned > ceiling)
		earned = ceiling > granted ? ceiling - granted : 0;
	gl_add_relaxed(b.granted_ns, earned);
}

int64_t gl_clocked_in_hand(struct gl_clocked b)
{
	return (int64_t)(gl_load_relaxed(b.granted_ns) - gl_really_spent(b.spent_ns, b.refund_ns));
}

uint64_t gl_clocked_sleep(struct gl_clocked b)
{
	gl_clocked_refill(b);
	int64_t lacking = (int64_t)b.resume_ns - gl_clocked_in_hand(b);
	if (lacking <= 0)
		return 0;
	uint64_t ns = (uint64_t)lacking * 100 / b.percent;
	return ns > MAX_SLEEP_NS ? MAX_SLEEP_NS : ns < MIN_SLEEP_NS ? MIN_SLEEP_NS : ns;
}

void gl_clocked_settle(struct gl_clocked b)
{
	uint64_t granted = gl_load_relaxed(b.granted_ns), at = gl_load_relaxed(b.at_ns), now = gl_now_ns(), spent;
	do {
		spent = gl_really_spent(b.spent_ns, b.refund_ns);
		GL_TEST_POINT("pacing");
	} while (granted < spent && !__atomic_compare_exchange_n(b.granted_ns, &granted, spent, false, __ATOMIC_RELAXED,
								 __ATOMIC_RELAXED)); /* another process does the same */
	while (at < now && !__atomic_compare_exchange_n(b.at_ns, &at, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
}
