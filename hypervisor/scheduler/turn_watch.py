# SPDX-License-Identifier: Apache-2.0
"""Polling of the holder's counters during a turn. The watch expires when the holder has used up its grant
and its queue is nearly drained, or when it has no work. Pure.

A scheduling step costs a hundred times as much as a poll, and would change nothing before the watch expires.
The daemon itself runs csrc/node/turn_watch.c. This module specifies that code. Tests and simulations use it.
"""

from __future__ import annotations

from limiter._native import lib

from hypervisor.model import TenantName
from hypervisor.scheduler.types import MAX_USAGE_STEP_NS, MS, TURN_IDLE_TIMEOUT_NS, TenantUsage, TurnWatch

MAX_POLL_NS, MIN_POLL_NS = int(lib.GL_WATCH_MAX_POLL_NS), int(lib.GL_WATCH_MIN_POLL_NS)
FIRST_POLL_NS = MS // 2
"""Shortest time from a decision to the first poll. Bounds the CPU time that a tenant can cause."""
ANY_BACKLOG_NS = 1 << 62
EXPIRED = -1
"""Value of `next_ns` of an expired watch."""


def start(
    tenant: TenantName,
    seen: TenantUsage,
    queue_end_ns: int,
    now_ns: int,
    *,
    until_spent_ns: int,
    queued_ns: int,
) -> TurnWatch:
    """Return a watch that starts now."""
    watch = TurnWatch(tenant, seen.spent_ns, queue_end_ns, now_ns, until_spent_ns, queued_ns)
    wait_ns = _wait_ns(watch, seen, now_ns)
    return watch._replace(next_ns=now_ns + min(max(wait_ns, FIRST_POLL_NS), MAX_POLL_NS))


def poll(watch: TurnWatch, seen: TenantUsage, now_ns: int) -> TurnWatch:
    """Return the watch after a poll. The counters may have any value."""
    spent_ns = seen.spent_ns - watch.spent_ns
    if spent_ns < 0:
        return watch._replace(next_ns=EXPIRED)
    if spent_ns:
        queue_end_ns = max(watch.queue_end_ns, watch.begin_ns) + min(spent_ns, MAX_USAGE_STEP_NS)
        watch = watch._replace(spent_ns=seen.spent_ns, queue_end_ns=queue_end_ns)
    left_ns = _queued_ns(watch, seen, now_ns)
    is_idle = not seen.waiting and not spent_ns and not left_ns
    is_used_up = seen.spent_ns >= watch.until_spent_ns
    if is_used_up and not watch.used_up_ns:
        watch = watch._replace(used_up_ns=now_ns, left_ns=left_ns)
    if is_idle or (is_used_up and left_ns <= watch.queued_ns):
        return watch._replace(next_ns=EXPIRED)
    wait_ns = _wait_ns(watch, seen, now_ns)
    return watch._replace(next_ns=now_ns + min(max(wait_ns, MIN_POLL_NS), MAX_POLL_NS))


def _queued_ns(watch: TurnWatch, seen: TenantUsage, now_ns: int) -> int:
    end_ns = max(watch.queue_end_ns, seen.queue_end_ns)
    return max(0, min(seen.outstanding_ns, end_ns - now_ns))


def _wait_ns(watch: TurnWatch, seen: TenantUsage, now_ns: int) -> int:
    """Return the shortest time until the watch can expire: the grant is used up, or the holder is idle."""
    queued_ns = _queued_ns(watch, seen, now_ns)
    wait_ns = max(0, watch.until_spent_ns - seen.spent_ns) + max(0, queued_ns - watch.queued_ns)
    return wait_ns if seen.waiting else min(wait_ns, queued_ns + TURN_IDLE_TIMEOUT_NS)
