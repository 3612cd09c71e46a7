# SPDX-License-Identifier: Apache-2.0
"""Coordinator of gangs: begins and ends a gang's turns on all of its GPUs at the same time. Pure.

A gang is due when, on each of its GPUs, it has had less wall time relative to its entitlement than the
single tenants there together. Among gangs that are due, the gang with the lowest vruntime is first. Its turn
begins on all GPUs at one time, when the queues of the last holders have drained. It lasts `gang_quantum_ns`
of wall time, or longer while no other tenant is due. Between a gang's turns, the single tenants divide the
GPU as without gangs.

One order of the gangs holds for all GPUs, so gangs cannot wait for each other in a circle. A gang that is due
stays due until it runs, whatever other tenants do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hypervisor.model import GpuUuid, TenantName
from hypervisor.scheduler.entity import Entity
from hypervisor.scheduler.gang_statistics import GangStats
from hypervisor.scheduler.gangs import (
    ENDING_NS,
    GANG_IDLE_TIMEOUT_NS,
    MIN_ENTITLEMENT,
    SEAT_MEMORY_NS,
    Gang,
    GangKey,
    Phase,
    Seat,
    gang_of,
)
from hypervisor.scheduler.scheduler import IDLE_TICK_NS, Scheduler
from hypervisor.scheduler.turns import WAKEUP_LEAD_NS
from hypervisor.scheduler.types import MS, GangSlot, SchedulerConfig

MAX_START_WAIT_NS = 20 * MS
"""Longest time from the decision to the start of a turn. A kernel that runs for longer on one GPU must not
keep the gang's other GPUs idle.
"""
RUNNING_TICK_NS = 4 * MS
DRAINING_TICK_NS = MS // 2
MAX_VRUNTIME_NS = 1e15
MAX_DEPARTED = 256


@dataclass(slots=True)
class Singles:
    """Account of all single tenants of one GPU together: those outside of gangs."""

    vruntime_ns: float = 0.0
    """Wall time that the single tenants had, divided by their entitlement. Compared with `Seat.vruntime_ns`
    of the gangs on this GPU.
    """
    entitlement: float = 1.0
    is_contending: bool = False
    """True if a single tenant waits, has work, or had work within GANG_IDLE_TIMEOUT_NS."""
    is_active: bool = False
    at_ns: int = 0

    def update(self, now_ns: int, entities: Collection[Entity], *, until_ns: int) -> None:
        """Add the time since the last call, and update the flags. `until_ns`: the time until which the single
        tenants had the GPU.
        """
        if self.is_contending:
            self.vruntime_ns += max(0, min(now_ns, until_ns) - self.at_ns) / self.entitlement
        self.at_ns = now_ns
        active = [entity for entity in entities if entity.is_active and entity.is_runnable]
        self.is_active = bool(active)
        self.entitlement = max(MIN_ENTITLEMENT, sum(entity.entitlement for entity in active))
        self.is_contending = any(
            entity.seen.waiting or entity.idle_ns(now_ns) < GANG_IDLE_TIMEOUT_NS for entity in active
        )

    def wait_ns(self, seat: Seat) -> float:
        """Return the wall time that the single tenants get before the gang in `seat` is due."""
        lead_ns = (seat.vruntime_ns - self.vruntime_ns) * self.entitlement
        return max(0.0, lead_ns) if self.is_contending else 0.0


class GangCoordinator:
    """Turns of all gangs of a node. A step covers some GPUs, and all other GPUs of the gangs on these."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._gangs: dict[GangKey, Gang] = {}
        self._singles: dict[GpuUuid, Singles] = {}
        self._departed: dict[GangKey, Gang] = {}
        """Gangs that have left all of their GPUs. Their vruntimes count if they come back."""
        self._due_ns: dict[GpuUuid, int] = {}
        self.stats = GangStats()

    @property
    def gangs(self) -> Mapping[GangKey, Gang]:
        """Gangs as of the last step."""
        return self._gangs

    def step(
        self, now_ns: int, schedulers: Mapping[GpuUuid, Scheduler], empty: Collection[GpuUuid] = ()
    ) -> int:
        """Begin and end turns, and return the time of the next step. Call this between `Scheduler.observe`
        and `Scheduler.decide`. `empty`: GPUs that no tenant uses any more.
        """
        self._update_gangs(now_ns, schedulers, schedulers.keys() | empty)
        gangs = [gang for gang in self._gangs.values() if not schedulers.keys().isdisjoint(gang.seats)]
        self._account(now_ns, gangs, schedulers)
        self._bound_lag(gangs, schedulers)
        self._end_turns(now_ns, gangs)
        self._begin_turns(now_ns, gangs)
        for gpu, scheduler in schedulers.items():
            self._tell(gpu, scheduler, gangs)
        due_ns = now_ns + max(MS // 10, min([IDLE_TICK_NS, *(self._wait_ns(now_ns, g) for g in gangs)]))
        self._due_ns.update(dict.fromkeys(schedulers, due_ns))
        return due_ns

    def due_ns(self, gpu: GpuUuid) -> int:
        """Return the time of the next step of a GPU, as its last step returned it."""
        return self._due_ns.get(gpu, 0)

    def is_needed(self, now_ns: int, gpu: GpuUuid, scheduler: Scheduler, *, has_news: bool) -> bool:
        """True if a step of this GPU has to include all GPUs of its gangs. False while the gangs wait and a
        single tenant's turn continues or passes to the next single tenant. `has_news`: the counters of a gang
        have changed.
        """
        return has_news or now_ns >= self.due_ns(gpu) or not scheduler.is_of_one_tenant

    # ---- membership ----

    def _update_gangs(
        self, now_ns: int, schedulers: Mapping[GpuUuid, Scheduler], looked_at: Collection[GpuUuid]
    ) -> None:
        found: dict[GangKey, dict[GpuUuid, dict[TenantName, Entity]]] = defaultdict(lambda: defaultdict(dict))
        for gpu, scheduler in schedulers.items():
            self._singles.setdefault(gpu, Singles(at_ns=now_ns))
            for name, entity in scheduler.entities.items():
                key = gang_of(name, entity.terms, entity.seen)
                if key is not None and (entity.seen.waiting or entity.idle_ns(now_ns) < SEAT_MEMORY_NS):
                    found[key][gpu][name] = entity
        for key in [k for k, g in self._gangs.items() if not g.seats.keys().isdisjoint(looked_at)]:
            if key not in found:
                self._end_abandoned(now_ns, self._gangs.pop(key))
        for key, places in found.items():
            gang = self._gangs.get(key)
            if gang is None:
                gang = self._departed.pop(key, None) or Gang(key, self._config, now_ns)
                self._gangs[key] = gang
            self._seat(gang, places, schedulers)

    def _seat(
        self,
        gang: Gang,
        places: Mapping[GpuUuid, dict[TenantName, Entity]],
        schedulers: Mapping[GpuUuid, Scheduler],
    ) -> None:
        """Record the gang's GPUs and members. If the GPUs have changed, `_end_turns` ends the gang's turn."""
        gang.has_moved |= gang.seats.keys() != places.keys()
        for gpu in gang.seats.keys() - places.keys():
            gang.leave(gpu)
        for gpu, members in places.items():
            seat = gang.seats.get(gpu)
            if seat is None or seat.scheduler is not schedulers[gpu]:
                had_ns = gang.left_vruntime_ns.pop(gpu, 0.0)
                vruntime_ns = max(had_ns, self._singles[gpu].vruntime_ns)
                seat = gang.seats[gpu] = Seat(schedulers[gpu], members, vruntime_ns)
            seat.members = members

    def _end_abandoned(self, now_ns: int, gang: Gang) -> None:
        if gang.phase is Phase.RUNNING:
            self.stats.record_turn(now_ns - gang.start_ns, "left")
        for gpu in list(gang.seats):
            gang.leave(gpu)
        gang.phase = Phase.WAITING
        self._departed[gang.key] = gang
        for key in list(self._departed)[:-MAX_DEPARTED]:
            del self._departed[key]

    # ---- accounts ----

    def _account(self, now_ns: int, gangs: Collection[Gang], schedulers: Mapping[GpuUuid, Scheduler]) -> None:
        # Until a gang's turn starts, the queued work of the single tenants runs, and that time is theirs.
        taken = {
            gpu: gang.start_ns for gang in gangs if gang.phase is not Phase.WAITING for gpu in gang.seats
        }
        ganged = {
            (gpu, n) for g in gangs if g.is_coordinated for gpu, seat in g.seats.items() for n in seat.members
        }
        for gang in gangs:
            gang.account(now_ns)
        for gpu, scheduler in schedulers.items():
            singles = [entity for name, entity in scheduler.entities.items() if (gpu, name) not in ganged]
            until_ns = now_ns if scheduler.has_cut_in else taken.get(gpu, now_ns)
            self._singles[gpu].update(now_ns, singles, until_ns=until_ns)

    def _bound_lag(self, gangs: Collection[Gang], schedulers: Mapping[GpuUuid, Scheduler]) -> None:
        """Bound the lag of each vruntime to one quantum, so that no gang or tenant saves up unused time."""
        quantum_ns = self._config.gang_quantum_ns
        for gpu in schedulers:
            singles = self._singles[gpu]
            here = [gang.seats[gpu] for gang in gangs if gpu in gang.seats]
            if not singles.is_active and here:
                least = min(seat.vruntime_ns - quantum_ns / seat.entitlement for seat in here)
                singles.vruntime_ns = max(singles.vruntime_ns, least)
            for seat in here:
                least = singles.vruntime_ns - quantum_ns / seat.entitlement
                seat.vruntime_ns = max(seat.vruntime_ns, least)
            if singles.vruntime_ns > MAX_VRUNTIME_NS:
                for seat in here:
                    seat.vruntime_ns -= singles.vruntime_ns
                for gang in (*self._gangs.values(), *self._departed.values()):
                    gang.left_vruntime_ns.pop(gpu, None)
                singles.vruntime_ns = 0.0
        for gang in gangs:
            others = [
                g.vruntime_ns - quantum_ns / g.share for g in gangs if g is not gang and g.is_coordinated
            ]
            least = min(others, default=gang.vruntime_ns) - quantum_ns / gang.share
            gang.vruntime_ns = max(gang.vruntime_ns, least)

    # ---- turns ----

    def _end_turns(self, now_ns: int, gangs: Collection[Gang]) -> None:
        for gang in gangs:
            if gang.phase is Phase.DRAINING and gang.is_drained(now_ns):
                self.stats.record_drain(now_ns - gang.end_ns)
                gang.phase = Phase.WAITING
        for gang in gangs:
            if gang.phase is Phase.RUNNING:
                reason = self._reason_to_end(now_ns, gang, gangs)
                if reason:
                    self.stats.record_turn(now_ns - gang.start_ns, reason)
                    gang.end_turn(now_ns)

    def _reason_to_end(self, now_ns: int, gang: Gang, gangs: Collection[Gang]) -> str:
        """Return the reason for the end of the turn, or "" if it continues."""
        if gang.has_moved:
            return "moved"
        if not gang.is_coordinated:
            return "alone"
        if not gang.is_runnable:
            return gang.stop_reason()
        if not gang.has_work(now_ns):
            return "idle"
        rivals = [other for other in gangs if self._is_rival(now_ns, gang, other, gangs)]
        if any(other.rank < gang.rank for other in rivals):
            return "preempted"
        is_wanted = bool(rivals) or self._are_singles_due(gang)
        gang.is_ending = is_wanted and now_ns >= gang.quantum_end_ns - ENDING_NS
        return "quantum" if is_wanted and gang.is_past_quantum(now_ns) else ""

    def _are_singles_due(self, gang: Gang) -> bool:
        return any(self._singles[gpu].wait_ns(seat) > 0 for gpu, seat in gang.seats.items())

    def _is_rival(self, now_ns: int, gang: Gang, other: Gang, gangs: Collection[Gang]) -> bool:
        """True if `other` is due, comes before `gang` in the order, and could begin a turn if `gang` and all
        gangs past their quantum ended theirs.
        """
        return (
            other.phase is Phase.WAITING
            and not other.seats.keys().isdisjoint(gang.seats)
            and other.order < gang.order
            and self._is_due(other)
            and all(g is gang or g.is_past_quantum(now_ns) for g in self._in_the_way(other, gangs))
        )

    def _in_the_way(self, gang: Gang, gangs: Collection[Gang]) -> list[Gang]:
        """Return the other gangs that have a turn, or drain, on a GPU of this gang."""
        return [
            other
            for other in gangs
            if other.phase is not Phase.WAITING
            and other is not gang
            and not other.seats.keys().isdisjoint(gang.seats)
        ]

    def _is_due(self, gang: Gang) -> bool:
        """True if the gang waits for a turn and the single tenants have had their time."""
        if not gang.is_coordinated or not gang.wants_turn:
            return False
        return gang.rank < 0 or not self._are_singles_due(gang)

    def _begin_turns(self, now_ns: int, gangs: Collection[Gang]) -> None:
        taken = {gpu for gang in gangs if gang.phase is not Phase.WAITING for gpu in gang.seats}
        for gang in sorted((g for g in gangs if g.phase is Phase.WAITING), key=lambda g: g.order):
            if not self._is_due(gang):
                gang.due_since_ns = None
                continue
            since_ns = gang.due_since_ns = now_ns if gang.due_since_ns is None else gang.due_since_ns
            if taken.isdisjoint(gang.seats):
                gang.begin_turn(now_ns, self._start_ns(now_ns, gang))
            elif now_ns - since_ns < 2 * self._config.gang_quantum_ns and not all(
                other.is_past_quantum(now_ns) for other in self._in_the_way(gang, gangs)
            ):
                continue  # do not reserve the GPUs that are free: they would be idle for long
            taken |= gang.seats.keys()

    def _start_ns(self, now_ns: int, gang: Gang) -> int:
        """Return the time at which other tenants' queues have drained on all of the gang's GPUs. 0 if now."""
        left_ns = max(
            sum(s.backlog_ns for n, s in seat.scheduler.entities.items() if n not in seat.members)
            for seat in gang.seats.values()
        )
        return now_ns + min(left_ns, MAX_START_WAIT_NS) - WAKEUP_LEAD_NS if left_ns > WAKEUP_LEAD_NS else 0

    # ---- results ----

    def _tell(self, gpu: GpuUuid, scheduler: Scheduler, gangs: Collection[Gang]) -> None:
        here = [gang for gang in gangs if gpu in gang.seats]
        coordinated = {n for gang in here if gang.is_coordinated for n in gang.seats[gpu].members}
        slots: list[GangSlot] = [slot for gang in here if (slot := gang.slot(gpu)) is not None]
        scheduler.coordinate(coordinated, slots[0] if slots else None)

    def _wait_ns(self, now_ns: int, gang: Gang) -> int:
        """Return the time until the gang's state may change by time alone."""
        if gang.phase is Phase.DRAINING:
            return DRAINING_TICK_NS
        if gang.phase is Phase.RUNNING:
            left_ns = gang.quantum_end_ns - now_ns
            due = [ns for ns in (left_ns - ENDING_NS, left_ns) if ns > 0]
            return min([RUNNING_TICK_NS, *due])
        if not gang.is_coordinated or not gang.wants_turn:
            return min(IDLE_TICK_NS, gang.limit_wait_ns())
        waits = [self._singles[gpu].wait_ns(seat) for gpu, seat in gang.seats.items()]
        return min(int(max(waits)) or IDLE_TICK_NS, gang.request_wait_ns())
