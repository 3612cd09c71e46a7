# SPDX-License-Identifier: Apache-2.0
"""Grants for the holder of a turn, for interleaved tenants and for paused ones. Pure.

If a new grant is close to the last one, the last one is kept: each change costs the tenant a wake-up.
"""

from __future__ import annotations

from hypervisor.scheduler.entity import MIN_GRANT_NS, Entity
from hypervisor.scheduler.types import MS, Grant

INTERLEAVED_RUN_AHEAD_NS = 2 * MS
"""Run-ahead of an interleaved tenant."""
MAX_INTERLEAVED_GRANT_NS = 4 * MS
"""Largest grant of an interleaved tenant."""
GUARANTEED_RUN_AHEAD_NS, MAX_GUARANTEED_GRANT_NS = 8 * MS, 12 * MS
"""The same for a tenant inside its request: a program that is slow on the host must be able to run ahead."""


def no_grant(entity: Entity) -> Grant:
    """Return a grant of no further GPU time. Return the last grant if it allows none either."""
    was = entity.grant
    if was.is_shared and was.granted_ns <= entity.seen.spent_ns:
        return was
    return Grant(entity.seen.spent_ns, INTERLEAVED_RUN_AHEAD_NS, is_shared=True)


def interleaved_grant(entity: Entity, *, is_inside: bool) -> Grant:
    """Return a grant of the tokens that an interleaved tenant has earned. `is_inside`: the tenant is inside
    its request and no higher class may preempt it.
    """
    spent_ns, was = entity.seen.spent_ns, entity.grant
    most_ns, ahead_ns = (
        (MAX_GUARANTEED_GRANT_NS, GUARANTEED_RUN_AHEAD_NS)
        if is_inside
        else (MAX_INTERLEAVED_GRANT_NS, INTERLEAVED_RUN_AHEAD_NS)
    )
    allowed_ns = min(most_ns, int(entity.interleave_bucket.level_ns), entity.limit_left_ns)
    if entity.waits_for_grant and allowed_ns < entity.min_grant_ns:
        return no_grant(entity)
    left_ns = was.granted_ns - spent_ns
    is_near = allowed_ns / 2 <= left_ns <= allowed_ns + MIN_GRANT_NS // 4
    if was.is_shared and was.run_ahead_ns == ahead_ns and is_near:
        return was
    return Grant(spent_ns + max(0, allowed_ns), ahead_ns, is_shared=True)


def turn_grant(
    entity: Entity, run_ahead_ns: int, turn_left_ns: int | None, quantum_ns: int, start_ns: int
) -> Grant:
    """Return a grant of the rest of a turn that begins at `start_ns`. `turn_left_ns` is None if no other
    tenant waits for a turn. The grant then changes rarely.
    """
    spent_ns, was = entity.seen.spent_ns, entity.grant
    left_ns = min(4 * quantum_ns if turn_left_ns is None else turn_left_ns, entity.limit_left_ns)
    had_ns = was.granted_ns - spent_ns
    is_near = quantum_ns <= had_ns <= left_ns if turn_left_ns is None else abs(had_ns - left_ns) < MS // 4
    if was.is_shared and was.run_ahead_ns == run_ahead_ns and was.start_ns == start_ns and is_near:
        return was
    return Grant(spent_ns + left_ns, run_ahead_ns, is_shared=True, start_ns=start_ns)
