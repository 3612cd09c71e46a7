# SPDX-License-Identifier: Apache-2.0
"""Configuration, input and output of the scheduler.

Values that every step creates are named tuples: these cost a third of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from limiter._native import lib

from hypervisor.model import TenantName
from limiter.quota import DEFAULT_WEIGHT, PriorityClass

MS = 1_000_000
TURN_IDLE_TIMEOUT_NS = int(lib.GL_TURN_IDLE_TIMEOUT_NS)
"""A holder that has had no work for this time loses its turn."""
MAX_USAGE_STEP_NS = int(lib.GL_MAX_USAGE_STEP_NS)
"""Upper bound of the GPU time that one tenant is charged between two readings of its counters."""

GANG_OFF = "off"
"""Value of `SchedParams.gang` that keeps a tenant out of every gang."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Configuration of the scheduler. GPU time, unless a field says wall time."""

    tick_ns: int = 2 * MS
    """Wall time between two steps while a tenant is active."""
    quantum_ns: int = 10 * MS
    """GPU time of one turn. A turn also ends after twice that in wall time."""
    run_ahead_ns: int = 4 * MS
    """GPU time that the holder of the turn may have queued."""
    gang_quantum_ns: int = 100 * MS
    """Shortest wall time of a gang's turn while the gang has work."""


@dataclass(frozen=True, slots=True)
class SchedParams:
    """A tenant's quota on one GPU."""

    limit_percent: int = 100
    request_percent: int = 0
    weight: int = DEFAULT_WEIGHT
    priority: int = PriorityClass.NORMAL
    """A `limiter.quota.PriorityClass`."""
    is_suspended: bool = False
    gang: str = ""
    """Id of the gang, the same for all of its tenants and GPUs. If empty, the tenant is a gang by itself once
    the library has seen its processes wait for each other. `GANG_OFF`: in no gang.
    """


class TenantUsage(NamedTuple):
    """Counters that the tenant's processes write. Untrusted: each may have any value."""

    spent_ns: int
    outstanding_ns: int = 0
    waiting: int = 0
    queue_end_ns: int = 0
    """CLOCK_MONOTONIC time when the outstanding work ends if the GPU runs nothing else. 0 if unknown."""
    processes: int = 1
    """Number of the tenant's processes that have used GPU time."""
    is_in_gang: bool = False
    """True if the library has seen processes on this GPU wait for processes on other GPUs."""


class Grant(NamedTuple):
    """Limit of the GPU time that a tenant may submit until the next grant."""

    granted_ns: int
    run_ahead_ns: int
    is_shared: bool
    exclusive_from_ns: int = 0
    """CLOCK_MONOTONIC time since which only this tenant has had work on the GPU, so that elapsed time equals
    used time. 0 if other tenants may have work there.
    """
    start_ns: int = 0
    """CLOCK_MONOTONIC time from which the grant is valid. 0 if at once."""
    sharers: int = 0
    """Upper bound of the processes, of all tenants, that have work on the GPU. 0 if unknown."""


class GangSlot(NamedTuple):
    """A gang's turn on one GPU. The coordinator passes it to that GPU's scheduler."""

    members: frozenset[TenantName]
    """The gang's tenants on this GPU. All may run at the same time."""
    start_ns: int
    """CLOCK_MONOTONIC time from which the members' grants are valid. 0 if at once."""
    rank: int
    """Minus the priority class while the gang is of a high class and inside its request, else 0."""
    is_open: bool
    """False once the turn has ended and the gang's work drains."""
    run_ahead_ns: int
    """GPU time that each member may have queued."""


class EntityStatus(NamedTuple):
    """State of an entity as the API and the metrics show it."""

    takes_turns: bool
    """True if the tenant gets exclusive turns, False if it runs interleaved."""
    share: float
    """Fraction of the GPU that the tenant may have now."""
    rate: float
    """Fraction of the GPU that the tenant used, averaged over RATE_WINDOW_NS."""


class QuantumExpiry(NamedTuple):
    """Moment at which the turn watch found the grant of a turn used up."""

    at_ns: int
    left_ns: int
    """Backlog of the holder at that moment."""


class TurnWatch(NamedTuple):
    """Poll of one tenant's counters on one GPU during a turn, and the condition that ends it."""

    tenant: TenantName
    spent_ns: int
    """GPU time spent as of the last poll."""
    queue_end_ns: int
    """Expected end of the queue. Earlier than the true end if the GPU had gaps since the decision."""
    begin_ns: int
    until_spent_ns: int
    """GPU time spent at which the watch expires, if the backlog is at most `queued_ns`."""
    queued_ns: int
    """Largest backlog at which the watch expires."""
    next_ns: int = 0
    """Time of the next poll."""
    used_up_ns: int = 0
    """Time at which `until_spent_ns` was found to be reached. 0 if not yet."""
    left_ns: int = 0
    """Backlog of the holder at that moment."""

    @property
    def used_up(self) -> QuantumExpiry | None:
        return QuantumExpiry(self.used_up_ns, self.left_ns) if self.used_up_ns else None


class Decision(NamedTuple):
    """Result of one scheduling step."""

    grants: Mapping[TenantName, Grant]
    turn: TenantName | None
    """Holder of the turn. Interleaved tenants run beside it. None if no tenant has the turn."""
    next_at_ns: int
    """Time of the next step, unless a doorbell rings before."""
    polled: frozenset[TenantName] = frozenset()
    """Tenants to read at the next step even if their doorbell has not rung."""
    muted: frozenset[TenantName] = frozenset()
    """Tenants whose doorbell does not wake the dispatcher, because their counters cannot change the decision.
    """
    preemptors: frozenset[TenantName] = frozenset()
    """Idle tenants whose work would preempt the holder. If one of them rings, the dispatcher withdraws the
    holder's grant before it reads any counter.
    """
    gang_turn: frozenset[TenantName] = frozenset()
    """Tenants on this GPU of the gang that has its turn."""
    turn_watch: TurnWatch | None = None
    """Watch to poll until the next step. A step is due when it expires. None if there is nothing to poll."""
