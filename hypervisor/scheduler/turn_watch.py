# SPDX-License-Identifier: Apache-2.0
"""What is enough to look at while a turn lasts: its holder's books, until it has used up what it was granted
and its queue is nearly dry, or until it has nothing to do. Pure.

To decide anew costs a hundred times as much as such a look, and would change nothing before. What is here in
Python says what csrc/node/turn_watch.c does, for tests and for models of a daemon.
"""

from __future__ import annotations

from limiter._native import lib

from hypervisor.model import TenantName
from hypervisor.scheduler.types import MAX_USAGE_STEP_NS, MS, TURN_IDLE_TIMEOUT_NS, Seen, Vigil

MAX_POLL_NS, MIN_POLL_NS = int(lib.GL_WATCH_MAX_POLL_NS), int(lib.GL_WATCH_MIN_POLL_NS)
FIRST_LOOK_NS = MS // 2
"""After a decision at the earliest, whatever the books say: bounds what a tenant can cost."""
ANY_QUEUE_NS = 1 << 62
OVER = -1
"""As `next_ns`: there is nothing more to look for."""


def begin(
    tenant: TenantName, seen: Seen, queue_end_ns: int, now_ns: int, *, until_spent_ns: int, queued_ns: int
) -> Vigil:
    """Return a vigil from now on."""
    vigil = Vigil(tenant, seen.spent_ns, queue_end_ns, now_ns, until_spent_ns, queued_ns)
    wait_ns = _wait_ns(vigil, seen, now_ns)
    return vigil._replace(next_ns=now_ns + min(max(wait_ns, FIRST_LOOK_NS), MAX_POLL_NS))


def look(vigil: Vigil, seen: Seen, now_ns: int) -> Vigil:
    """Return the vigil as it stands after a look. The figures may be anything."""
    spent_ns = seen.spent_ns - vigil.spent_ns
    if spent_ns < 0:
        return vigil._replace(next_ns=OVER)
    if spent_ns:
        queue_end_ns = max(vigil.queue_end_ns, vigil.begin_ns) + min(spent_ns, MAX_USAGE_STEP_NS)
        vigil = vigil._replace(spent_ns=seen.spent_ns, queue_end_ns=queue_end_ns)
    left_ns = _queued_ns(vigil, seen, now_ns)
    is_idle = not seen.waiting and not spent_ns and not left_ns
    is_used_up = seen.spent_ns >= vigil.until_spent_ns
    if is_used_up and not vigil.used_up_ns:
        vigil = vigil._replace(used_up_ns=now_ns, left_ns=left_ns)
    if is_idle or (is_used_up and left_ns <= vigil.queued_ns):
        return vigil._replace(next_ns=OVER)
    wait_ns = _wait_ns(vigil, seen, now_ns)
    return vigil._replace(next_ns=now_ns + min(max(wait_ns, MIN_POLL_NS), MAX_POLL_NS))


def _queued_ns(vigil: Vigil, seen: Seen, now_ns: int) -> int:
    end_ns = max(vigil.queue_end_ns, seen.queue_end_ns)
    return max(0, min(seen.outstanding_ns, end_ns - now_ns))


def _wait_ns(vigil: Vigil, seen: Seen, now_ns: int) -> int:
    """Return how long it lasts at least, or until it may turn out that there is nothing more to do."""
    queued_ns = _queued_ns(vigil, seen, now_ns)
    wait_ns = max(0, vigil.until_spent_ns - seen.spent_ns) + max(0, queued_ns - vigil.queued_ns)
    return wait_ns if seen.waiting else min(wait_ns, queued_ns + TURN_IDLE_TIMEOUT_NS)
