# SPDX-License-Identifier: Apache-2.0
"""The values that the arbiter takes in and gives out, and its settings.

Those that are made at every step are tuples, which cost a third of what frozen classes do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from limiter._native import lib

from hypervisor.model import TenantName
from limiter.quota import PriorityClass

MS = 1_000_000
TURN_IDLE_TIMEOUT_NS = int(lib.GL_TURN_IDLE_TIMEOUT_NS)
"""A holder that has had no work for this time loses its turn."""
MAX_USAGE_STEP_NS = int(lib.GL_MAX_USAGE_STEP_NS)
"""Upper bound of the GPU time that one tenant is charged between two readings of its counters."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Settings of an arbiter, in ns of GPU time where nothing else is said."""

    tick_ns: int = 2 * MS
    """Wall time between two looks while anybody works."""
    quantum_ns: int = 10 * MS
    """Of one turn, which also ends after twice that in wall time."""
    run_ahead_ns: int = 4 * MS
    """What the holder of the turn may have queued."""


@dataclass(frozen=True, slots=True)
class SchedParams:
    """A tenant's quota on one GPU."""

    limit_percent: int = 100
    request_percent: int = 0
    weight: int = 100
    priority: int = PriorityClass.NORMAL
    """1 low, 2 normal, 3 high."""
    is_suspended: bool = False


class TenantUsage(NamedTuple):
    """What a tenant's processes have written down: all of it may be wrong."""

    spent_ns: int
    outstanding_ns: int = 0
    waiting: int = 0
    queue_end_ns: int = 0
    """Monotonic clock: when what is outstanding will be done, if the GPU does nothing else; 0: it does not
    say.
    """
    processes: int = 1
    """That have used GPU time."""


class Grant(NamedTuple):
    """How far a tenant may go."""

    granted_ns: int
    run_ahead_ns: int
    is_shared: bool
    exclusive_from_ns: int = 0
    """Since when nobody else's work has been on the GPU, so that what passes is what is used; 0: others' may
    be.
    """
    start_ns: int = 0
    """From when on it may; 0: at once."""
    sharers: int = 0
    """Processes of all that have work on the GPU, at most; 0: not known."""


class EntityStatus(NamedTuple):
    """What the arbiter thinks of a tenant, for people."""

    takes_turns: bool
    """It keeps the GPU busy when it is let; others slip their work in beside."""
    share: float
    """Of the GPU, that it may have now."""
    rate: float
    """Of the GPU, that it had lately."""


class QuantumExpiry(NamedTuple):
    """That a vigil has found a turn's grant used up."""

    at_ns: int
    left_ns: int
    """What was queued then."""


class TurnWatch(NamedTuple):
    """Over one tenant's books on one GPU."""

    tenant: TenantName
    spent_ns: int
    """GPU time spent when it was looked at last."""
    queue_end_ns: int
    """When its queue should run dry: earlier than it does, if there were gaps since the decision."""
    begin_ns: int
    until_spent_ns: int
    """It is over when so much is spent..."""
    queued_ns: int
    """...and no more than this is queued."""
    next_ns: int = 0
    """When to look."""
    used_up_ns: int = 0
    """When so much was found to be spent; 0: not yet."""
    left_ns: int = 0
    """What was queued then."""

    @property
    def used_up(self) -> QuantumExpiry | None:
        return QuantumExpiry(self.used_up_ns, self.left_ns) if self.used_up_ns else None


class Decision(NamedTuple):
    """What one step decides."""

    grants: Mapping[TenantName, Grant]
    turn: TenantName | None
    """Who has the GPU to itself, tenants that slip in apart."""
    next_at_ns: int
    """When to look again, if no doorbell rings before."""
    polled: frozenset[TenantName] = frozenset()
    """Who is to be looked at next time even if it does not ring."""
    muted: frozenset[TenantName] = frozenset()
    """Whose rings are no reason to look before: nothing that they can tell would change the decision."""
    preemptors: frozenset[TenantName] = frozenset()
    """Who may have work any time that the holder has to make room for: if one of them rings, it is not to
    submit more until that has been looked at.
    """
    turn_watch: TurnWatch | None = None
    """What to look at meanwhile, without deciding; when it is over, a decision is due."""
