# SPDX-License-Identifier: Apache-2.0
"""State of one gang: its tenants on several GPUs, its vruntimes, and its turn. Pure.

Processes of a gang wait for each other on the GPU. A turn on only one of the gang's GPUs would be spent
waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from hypervisor.model import GpuUuid, TenantName
from hypervisor.scheduler.entity import Entity
from hypervisor.scheduler.scheduler import IDLE_TICK_NS, Scheduler
from hypervisor.scheduler.token_bucket import TokenBucket
from hypervisor.scheduler.types import (
    GANG_OFF,
    MAX_USAGE_STEP_NS,
    MS,
    GangSlot,
    SchedParams,
    SchedulerConfig,
    TenantUsage,
)
from limiter.quota import PriorityClass
from limiter.units import PERCENT

GANG_IDLE_TIMEOUT_NS = 5 * MS
"""A gang that has had no work on any GPU for this time loses its turn. The time is longer than the pauses
between two steps of a training loop: ending a turn there would cost a switch.
"""
GANG_RUN_AHEAD_NS = 8 * MS
"""Least run-ahead of a member. A program on several GPUs runs ahead on all of them."""
ENDING_RUN_AHEAD_NS, ENDING_NS = 2 * MS, 10 * MS
"""Run-ahead of a member near the end of a turn, and the time before the end at which it begins. Less work
then drains after the turn, and no GPU is far ahead of another one.
"""
MAX_SPIN_NS = 20 * MS
"""Time for which outstanding work still counts as work after its charged time has passed. The work may wait
for another GPU, or it may be finished and not yet polled by the tenant.
"""
MAX_DRAIN_NS = 20 * MS
"""Time after a turn for which the GPUs are kept free while the gang's work drains."""
SETTLE_NS = 3 * MS
"""Time after which outstanding work counts as drained if its charged time has passed and the tenant has not
polled it.
"""
DRAINED_NS = MS * 7 // 20
"""Outstanding work at which a GPU counts as drained: the length of a step and a wake-up."""
SEAT_MEMORY_NS = 10_000 * MS
"""A GPU that a gang has not used for this time no longer belongs to the gang."""
REQUEST_BURST_NS = 50 * MS
MIN_ENTITLEMENT = 0.01


class GangKey(NamedTuple):
    """Identity of a gang. The key of a tenant that is a gang by itself never equals that of a named gang."""

    name: str
    is_named: bool


class Phase(Enum):
    """Phase of a gang."""

    WAITING = "waiting"
    """The gang has no turn."""
    RUNNING = "running"
    DRAINING = "draining"
    """The gang's turn has ended, and its work drains."""


def gang_of(name: TenantName, terms: SchedParams, seen: TenantUsage) -> GangKey | None:
    """Return the gang that a tenant belongs to on one GPU, or None. A GPU that no process of the tenant has
    used does not count.
    """
    if terms.gang == GANG_OFF or not (seen.processes or seen.waiting):
        return None
    if terms.gang:
        return GangKey(terms.gang, is_named=True)
    return GangKey(name, is_named=False) if seen.is_in_gang else None


@dataclass(slots=True)
class Seat:
    """A gang on one GPU."""

    scheduler: Scheduler
    members: dict[TenantName, Entity]
    vruntime_ns: float
    """Wall time of the gang's turns divided by its entitlement here. Compared with `Singles.vruntime_ns`."""
    spent_ns: dict[TenantName, int] = field(default_factory=dict)

    @property
    def entitlement(self) -> float:
        """Fraction of the GPU that the gang has if every tenant uses all it can get."""
        return max(MIN_ENTITLEMENT, sum(entity.entitlement for entity in self.members.values()))

    @property
    def is_contended(self) -> bool:
        """True if more than one tenant uses the GPU."""
        return len(self.scheduler.entities) > 1

    def take_spent(self) -> int:
        """Return the GPU time that the members have spent since the last call."""
        before, self.spent_ns = self.spent_ns, {n: s.seen.spent_ns for n, s in self.members.items()}
        spent_ns = sum(max(0, ns - before.get(name, ns)) for name, ns in self.spent_ns.items())
        return min(spent_ns, MAX_USAGE_STEP_NS)


class Gang:
    """One gang, on the GPUs in `seats`."""

    def __init__(self, key: GangKey, config: SchedulerConfig, now_ns: int) -> None:
        self.key = key
        self.seats: dict[GpuUuid, Seat] = {}
        self.vruntime_ns = 0.0
        """Wall time of the turns divided by the gang's least entitlement. Compared with other gangs'."""
        self.left_vruntime_ns: dict[GpuUuid, float] = {}
        """The seats' vruntimes on GPUs that the gang has left."""
        self.phase = Phase.WAITING
        self.start_ns = 0
        """Start of the turn."""
        self.end_ns = 0
        """End of the turn. The gang's work may drain afterwards."""
        self.due_since_ns: int | None = None
        """Time since which the gang has been due. None if it is not due or has its turn."""
        self.is_ending = False
        """True if the turn ends within ENDING_NS."""
        self.has_moved = False
        """True if GPUs have come or gone during the turn."""
        self._start_told_ns = 0
        self._quantum_ns = config.gang_quantum_ns
        self._run_ahead_ns = max(GANG_RUN_AHEAD_NS, config.run_ahead_ns)
        self._at_ns = now_ns
        self._request = TokenBucket(REQUEST_BURST_NS, min_debt_ns=2 * self._quantum_ns, max_debt_ns=0)

    @property
    def members(self) -> list[Entity]:
        """Tenants of the gang, once per GPU."""
        return [entity for seat in self.seats.values() for entity in seat.members.values()]

    @property
    def share(self) -> float:
        """Fraction of its GPUs that the gang can have: the least of its entitlements."""
        return min((seat.entitlement for seat in self.seats.values()), default=MIN_ENTITLEMENT)

    @property
    def is_real(self) -> bool:
        """True if the gang has several GPUs or tenants, so that its processes can wait for each other."""
        return len(self.seats) > 1 or any(len(seat.members) > 1 for seat in self.seats.values())

    @property
    def is_coordinated(self) -> bool:
        """True if the gang's tenants get GPU time only in its turns. A light gang runs interleaved instead. A
        gang that is alone on all of its GPUs runs without turns.
        """
        is_contended = self.is_real and any(seat.is_contended for seat in self.seats.values())
        is_heavy = self.phase is not Phase.WAITING or any(entity.is_backlogged for entity in self.members)
        return is_contended and is_heavy

    @property
    def is_runnable(self) -> bool:
        """True if no member is suspended or over its limit. One such member stops the whole gang."""
        return all(entity.is_runnable for entity in self.members)

    @property
    def wants_turn(self) -> bool:
        """True if a tenant of the gang waits for GPU time and the gang is runnable."""
        return self.is_runnable and any(entity.seen.waiting for entity in self.members)

    @property
    def rank(self) -> int:
        """Minus the priority class if it is high and the gang is inside its request, else 0."""
        least = min((entity.terms.priority for entity in self.members), default=0)
        is_inside = self._request.level_ns > 0 and self._request_fraction > 0
        return -least if least >= PriorityClass.HIGH and is_inside else 0

    @property
    def order(self) -> tuple[int, float, GangKey]:
        """Sort key: the lowest is next. It is the same on all GPUs, so gangs cannot wait in a circle."""
        return self.rank, self.vruntime_ns, self.key

    @property
    def _request_fraction(self) -> float:
        return min((entity.terms.request_percent for entity in self.members), default=0) / PERCENT

    def has_work(self, now_ns: int) -> bool:
        """True if a tenant waits, has work, or had work within GANG_IDLE_TIMEOUT_NS. Also true for that time
        after the start of a turn.
        """
        return now_ns < self.start_ns + GANG_IDLE_TIMEOUT_NS or any(
            entity.seen.waiting
            or entity.idle_ns(now_ns) < (MAX_SPIN_NS if entity.seen.outstanding_ns else GANG_IDLE_TIMEOUT_NS)
            for entity in self.members
        )

    @property
    def quantum_end_ns(self) -> int:
        """Time from which the turn may end because other gangs or tenants are due."""
        return self.start_ns + self._quantum_ns

    def is_past_quantum(self, now_ns: int) -> bool:
        """True if the turn may end because other gangs or tenants are due, or has ended."""
        return self.phase is not Phase.RUNNING or now_ns >= self.quantum_end_ns

    def account(self, now_ns: int) -> None:
        """Add the time since the last call to the vruntimes. During a turn and its drain that is wall time,
        else the GPU time that the members have spent.
        """
        from_ns, self._at_ns = self._at_ns, now_ns
        wall_ns = max(0, now_ns - max(from_ns, self.start_ns)) if self.phase is not Phase.WAITING else 0
        most_ns = most = 0.0
        for seat in self.seats.values():
            used_ns = seat.take_spent()
            if self.phase is not Phase.WAITING:
                used_ns = 0 if seat.scheduler.has_cut_in else wall_ns
            seat.vruntime_ns += used_ns / seat.entitlement
            most, most_ns = max(most, used_ns / seat.entitlement), max(most_ns, used_ns)
        self.vruntime_ns += most
        self._request.advance(now_ns - from_ns, most_ns, self._request_fraction)

    def leave(self, gpu: GpuUuid) -> None:
        """Give up a GPU. Its vruntime is kept in case the gang comes back there."""
        self.left_vruntime_ns[gpu] = self.seats.pop(gpu).vruntime_ns

    def begin_turn(self, now_ns: int, start_ns: int) -> None:
        """Begin a turn whose grants are valid from `start_ns`, or at once if it is 0."""
        self.phase, self.start_ns, self._start_told_ns = Phase.RUNNING, max(now_ns, start_ns), start_ns
        self.due_since_ns, self.has_moved, self.is_ending = None, False, False

    def end_turn(self, now_ns: int) -> None:
        """End the turn on all GPUs at once."""
        self.phase, self.end_ns = Phase.DRAINING, now_ns

    def is_drained(self, now_ns: int) -> bool:
        """True if the work of an ended turn is done on all GPUs, or MAX_DRAIN_NS has passed."""
        since_ns = now_ns - self.end_ns
        return since_ns >= MAX_DRAIN_NS or all(
            entity.seen.outstanding_ns <= DRAINED_NS
            or (not entity.backlog_ns and since_ns >= SETTLE_NS and entity.idle_ns(now_ns) >= SETTLE_NS)
            for entity in self.members
        )

    def limit_wait_ns(self) -> int:
        """Return the wall time until the limits of all members allow the next turn."""
        return max((s.limit_wait_ns() for s in self.members if not s.is_runnable), default=0) or IDLE_TICK_NS

    def request_wait_ns(self) -> int:
        """Return the wall time until the gang is inside its request. IDLE_TICK_NS if it is not high."""
        is_high = all(entity.terms.priority >= PriorityClass.HIGH for entity in self.members)
        return (
            self._request.wall_ns_until(1, self._request_fraction) or IDLE_TICK_NS
            if is_high
            else IDLE_TICK_NS
        )

    def slot(self, gpu: GpuUuid) -> GangSlot | None:
        """Return the gang's turn for the scheduler of a GPU, or None if the gang has no turn."""
        if self.phase is Phase.WAITING:
            return None
        members = frozenset(self.seats[gpu].members)
        run_ahead_ns = ENDING_RUN_AHEAD_NS if self.is_ending else self._run_ahead_ns
        return GangSlot(members, self._start_told_ns, self.rank, self.phase is Phase.RUNNING, run_ahead_ns)

    def stop_reason(self) -> str:
        """Return the reason that the gang is not runnable: "suspended" or "limit"."""
        return "suspended" if any(entity.terms.is_suspended for entity in self.members) else "limit"


Gangs = Mapping[GangKey, Gang]
