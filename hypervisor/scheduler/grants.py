# SPDX-License-Identifier: Apache-2.0
"""What tenants are granted: the holder of a turn, one that slips in, one that is held back. Pure.

A grant that is near enough stays the same: each change costs the tenant a wake-up.
"""

from __future__ import annotations

from hypervisor.scheduler.entity import MIN_GRANT_NS, Entity
from hypervisor.scheduler.types import MS, Grant

INTERLEAVED_RUN_AHEAD_NS = 2 * MS
"""What a tenant that slips in may have queued."""
MAX_INTERLEAVED_GRANT_NS = 4 * MS
"""What it is granted at a time."""
GUARANTEED_RUN_AHEAD_NS, MAX_GUARANTEED_GRANT_NS = 8 * MS, 12 * MS
"""The same for one inside its request: a program whose host is the slow side must be able to run ahead."""


def no_grant(entity: Entity) -> Grant:
    """Return a grant of nothing more; the same as before if that is already so."""
    was = entity.grant
    if was.is_shared and was.granted_ns <= entity.seen.spent_ns:
        return was
    return Grant(entity.seen.spent_ns, INTERLEAVED_RUN_AHEAD_NS, is_shared=True)


def interleaved_grant(entity: Entity, *, is_inside: bool) -> Grant:
    """Return what one has come to that slips in. `is_inside`: its request, and nobody above may come."""
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
    """Return the rest of a turn that begins at `start_ns`; None: nobody else wants one, and there are to be
    few changes.
    """
    spent_ns, was = entity.seen.spent_ns, entity.grant
    left_ns = min(4 * quantum_ns if turn_left_ns is None else turn_left_ns, entity.limit_left_ns)
    had_ns = was.granted_ns - spent_ns
    is_near = quantum_ns <= had_ns <= left_ns if turn_left_ns is None else abs(had_ns - left_ns) < MS // 4
    if was.is_shared and was.run_ahead_ns == run_ahead_ns and was.start_ns == start_ns and is_near:
        return was
    return Grant(spent_ns + left_ns, run_ahead_ns, is_shared=True, start_ns=start_ns)
