# SPDX-License-Identifier: Apache-2.0
"""Run queue of one GPU: its tenants, its scheduler, its memory wait queue, and the published grants.

Dispatcher thread only, unless a docstring says "Any thread".
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hypervisor.dispatcher.usage import DeviceUsage
from hypervisor.errors import SegmentError
from hypervisor.model import GpuUuid, TenantName
from hypervisor.scheduler.gangs import GangKey, gang_of
from hypervisor.scheduler.memory_wait_queue import MemoryWaitQueue, MemoryWaitState
from hypervisor.scheduler.scheduler import Scheduler
from hypervisor.scheduler.statistics import SchedulerStats
from hypervisor.scheduler.types import (
    Decision,
    EntityStatus,
    Grant,
    QuantumExpiry,
    SchedParams,
    SchedulerConfig,
    TenantUsage,
    TurnWatch,
)
from hypervisor.shm.segments import PolicySegment, UsageSegment

logger = logging.getLogger(__name__)
HEARTBEAT_NS = 100_000_000
"""Upper bound of the time between two steps."""
UINT64_MAX = (1 << 64) - 1
"""Upper bound of a grant: a tenant can report any GPU time as spent."""
STATUS_MAX_AGE_NS = 50_000_000
"""Maximum age of the shares that the API and the metrics show."""


@dataclass(frozen=True, slots=True)
class TenantHandle:
    """One tenant of the tenant list: its segments and its quota per GPU."""

    tenant: TenantName
    usage: UsageSegment
    policy: PolicySegment
    terms: Mapping[GpuUuid, SchedParams]
    owner: str = ""
    """User whose tenants share a budget of doorbell rings. Empty if the tenant only has its own budget."""


@dataclass(frozen=True, slots=True)
class TenantShare:
    """Share of a tenant on one GPU as of the last step, for the API and the metrics."""

    seen: TenantUsage
    grant: Grant
    has_turn: bool
    status: EntityStatus | None = None
    """None if the tenant is alone on the GPU."""


class RunQueue:
    """Run queue of one GPU, whose entry in every policy segment is `entry`."""

    def __init__(self, config: SchedulerConfig, gpu: GpuUuid, entry: int) -> None:
        self.gpu = gpu
        self.entry = entry
        self.due_ns = 0
        """Time of the next step, unless a doorbell rings before."""
        self.polled: Collection[TenantName] = ()
        """Tenants to read at the next step even if their doorbell has not rung."""
        self.muted: frozenset[TenantName] = frozenset()
        """Tenants whose doorbell cannot change the decision."""
        self.preemptors: frozenset[TenantName] = frozenset()
        """Idle tenants whose ring withdraws the holder's grant before any counter is read."""
        self.turn_watch: TurnWatch | None = None
        """Watch whose expiry makes a step due. None if there is nothing to poll."""
        self.turns = SchedulerStats(config.quantum_ns)
        self.memory = MemoryWaitQueue()
        self.shares: Mapping[TenantName, TenantShare] = {}
        """Replaced and never changed. Any thread."""
        self.gangs: dict[TenantName, GangKey] = {}
        """Gang by tenant. A tenant without a gang has no entry."""
        self.has_gang_news = True
        """True if, since the last step, a tenant has joined or left, or a quota or a gang's counters have
        changed.
        """
        self.scheduler = Scheduler(config)
        self._config = config
        self._decision: Decision | None = None
        self._changed: list[TenantName] = []
        """Tenants whose grants are to be published."""
        self._members: dict[TenantName, TenantHandle] = {}
        self._seen: dict[TenantName, TenantUsage] = {}
        self._terms: dict[TenantName, SchedParams] = {}
        self._published: dict[TenantName, Grant] = {}
        self._memory_seen: dict[TenantName, MemoryWaitState] = {}
        self._wanted: dict[TenantName, bool] = {}
        self._is_memory_news = True
        self._status_at_ns = -STATUS_MAX_AGE_NS

    @property
    def is_empty(self) -> bool:
        return not self._members

    def update(self, member: TenantHandle, figures: DeviceUsage) -> None:
        """Record a tenant's quota and counters. A new tenant joins the run queue."""
        name = member.tenant
        self._members[name] = member
        self.has_gang_news |= self._terms.get(name) is not member.terms[self.gpu]
        self._terms[name] = member.terms[self.gpu]
        key = gang_of(name, self._terms[name], figures.time)
        is_known = self._seen.get(name) == figures.time if key is not None else name in self._seen
        self.has_gang_news |= not is_known or self.gangs.get(name) != key
        if key is not None:
            self.gangs[name] = key
        else:
            self.gangs.pop(name, None)
        # Equal counters stay the same object: the scheduler then skips the tenant.
        if self._seen.get(name) != figures.time:
            self._seen[name] = figures.time
        if self._memory_seen.get(name) != figures.memory:
            self._memory_seen[name] = figures.memory
            self._is_memory_news = True

    def dequeue(self, name: TenantName) -> None:
        """Remove a tenant that no longer uses the GPU."""
        if self._members.pop(name, None) is not None:
            del self._seen[name], self._terms[name], self._memory_seen[name]
            self.gangs.pop(name, None)
            self._is_memory_news = self.has_gang_news = True

    def forget(self, name: TenantName) -> None:
        """Forget the values published to a tenant, so that all are published again."""
        self._published.pop(name, None)
        self._wanted.pop(name, None)
        self._is_memory_news = True

    def observe(self, now_ns: int, used_up: QuantumExpiry | None) -> None:
        """Run the first half of a step. `used_up`: when the turn watch found the quantum used up."""
        if self._members:
            self.scheduler.observe(now_ns, self._seen, self._terms, used_up)

    def decide(self, now_ns: int) -> None:
        """Run the second half of a step. Call `withdraw` and then `settle` to publish its grants."""
        self.has_gang_news = False
        if not self._members:
            self._decision, self._changed = None, []
            return
        decision = self._decision = self.scheduler.decide(now_ns)
        self._changed = [
            name
            for name, grant in decision.grants.items()
            if (was := self._published.get(name)) is not grant and was != grant
        ]

    def withdraw(self) -> None:
        """Publish the changed grants of the tenants that do not have the turn. Call this before `settle`."""
        self._publish(name for name in self._changed if name not in self._running)

    def settle(self, now_ns: int, *, is_freed_elsewhere: bool) -> None:
        """Publish the changed grants of the tenants that have the turn, and finish the step.

        `is_freed_elsewhere`: memory was freed that no tenant counts.
        """
        decision = self._decision
        if decision is not None:
            self._publish(name for name in self._changed if name in self._running)
            self._record(now_ns, decision)
        else:
            self.scheduler = Scheduler(self._config)
            self.shares, self.polled, self.due_ns = {}, (), now_ns + HEARTBEAT_NS
            self.muted, self.preemptors, self.turn_watch = frozenset(), frozenset(), None
            self._status_at_ns = -STATUS_MAX_AGE_NS
        due_ns = self.memory.is_due_at_ns
        if self._is_memory_news or is_freed_elsewhere or (due_ns is not None and due_ns <= now_ns):
            self._offer_memory(now_ns, is_freed_elsewhere)
            due_ns = self.memory.is_due_at_ns
        if due_ns is not None:
            self.due_ns = min(self.due_ns, due_ns)
        if self.memory.counters.waiting:  # tenants ring when they free memory
            self.muted = frozenset()

    @property
    def _running(self) -> frozenset[TenantName]:
        """Tenants that have the turn: one single tenant, or the members of one gang."""
        decision = self._decision
        if decision is None:
            return frozenset()
        return decision.gang_turn if decision.turn is None else frozenset((decision.turn,))

    def preempt(self) -> None:
        """Withdraw the grants of the tenants that have the turn. The caller runs a step right after this."""
        for name in self._running:
            if name in self._members and name in self._published:
                self._published[name] = nothing = self._published[name]._replace(
                    granted_ns=0, exclusive_from_ns=0
                )
                publish(self._members[name], self.entry, nothing)

    def books_of(self, name: TenantName) -> tuple[Any, int]:
        """Return the C view of a tenant's usage segment, and the GPU's index in that segment."""
        return self._members[name].usage.view, self._memory_seen[name].entry

    def _publish(self, names: Iterable[TenantName]) -> None:
        for name in names:
            assert self._decision is not None
            self._published[name] = grant = self._decision.grants[name]
            publish(self._members[name], self.entry, grant)

    def _record(self, now_ns: int, decision: Decision) -> None:
        self.turns.record(now_ns, self._seen, self._terms, decision)
        self.polled, self.due_ns = decision.polled, decision.next_at_ns
        self.muted, self.turn_watch = decision.muted, decision.turn_watch
        self.preemptors = decision.preemptors
        if now_ns - self._status_at_ns >= STATUS_MAX_AGE_NS:
            self._status_at_ns = now_ns
            self.shares = self._shares_of(decision)

    def _shares_of(self, decision: Decision) -> dict[TenantName, TenantShare]:
        statuses, running = self.scheduler.statuses(), self._running
        return {
            name: TenantShare(figures, decision.grants[name], name in running, statuses.get(name))
            for name, figures in self._seen.items()
        }

    def _offer_memory(self, now_ns: int, is_freed_elsewhere: bool) -> None:
        """Notify waiting tenants if memory was freed. Publish to all tenants whether memory is wanted."""
        self._is_memory_news = False
        decision = self.memory.step(now_ns, self._memory_seen, freed_elsewhere=is_freed_elsewhere)
        for name, member in self._members.items():
            try:
                if self._wanted.get(name) != decision.is_wanted:
                    member.policy.want_memory(self.entry, is_wanted=decision.is_wanted)
                    self._wanted[name] = decision.is_wanted
                if name in decision.notify:
                    member.usage.memory_changed(self._memory_seen[name].entry)
            except SegmentError as error:
                logger.warning("%s", error)


def publish(member: TenantHandle, entry: int, grant: Grant) -> None:
    """Write a grant into a tenant's policy segment. Log a warning if the segment is damaged."""
    try:
        member.policy.grant(
            entry,
            granted_ns=min(grant.granted_ns, UINT64_MAX),
            run_ahead_ns=grant.run_ahead_ns,
            is_shared=grant.is_shared,
            exclusive_from_ns=grant.exclusive_from_ns,
            start_ns=grant.start_ns,
            sharers=grant.sharers,
        )
    except SegmentError as error:
        logger.warning("%s", error)
