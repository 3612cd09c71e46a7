# SPDX-License-Identifier: Apache-2.0
"""Run queue of one GPU: its tenants, its scheduler, its memory wait queue, and the published grants.

Dispatcher thread only, unless a docstring says "Any thread".
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hypervisor.dispatcher.usage import DeviceUsage
from hypervisor.errors import SegmentError
from hypervisor.model import GpuUuid, TenantName
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
    """The user whose tenants share a budget of doorbell rings; empty: the tenant has one to itself."""


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
        """Tenants whose rings cannot change the decision."""
        self.preemptors: frozenset[TenantName] = frozenset()
        """Tenants whose rings withdraw the holder's grant before anything is read."""
        self.turn_watch: TurnWatch | None = None
        """A step is due when it expires. None if there is nothing to poll."""
        self.turns = SchedulerStats(config.quantum_ns)
        self.memory = MemoryWaitQueue()
        self.shares: Mapping[TenantName, TenantShare] = {}
        """Replaced and never changed. Any thread."""
        self._config = config
        self._scheduler = Scheduler(config)
        self._members: dict[TenantName, TenantHandle] = {}
        self._seen: dict[TenantName, TenantUsage] = {}
        self._terms: dict[TenantName, SchedParams] = {}
        self._published: dict[TenantName, Grant] = {}
        self._memory_seen: dict[TenantName, MemoryWaitState] = {}
        self._wanted: dict[TenantName, bool] = {}
        self._is_memory_news = True
        self._status_at_ns = -STATUS_MAX_AGE_NS
        self._holder: TenantName | None = None

    @property
    def is_empty(self) -> bool:
        return not self._members

    def update(self, member: TenantHandle, figures: DeviceUsage) -> None:
        """Record a tenant's quota and counters; the tenant joins the run queue if it is new."""
        name = member.tenant
        self._members[name] = member
        self._terms[name] = member.terms[self.gpu]
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
            self._is_memory_news = True

    def forget(self, name: TenantName) -> None:
        """Forget the values published to a tenant, whose segment is new."""
        self._published.pop(name, None)
        self._wanted.pop(name, None)
        self._is_memory_news = True

    def schedule(self, now_ns: int, *, used_up: QuantumExpiry | None, is_freed_elsewhere: bool) -> None:
        """Run a step and publish the grants. `used_up`: the finding of the turn watch. `is_freed_elsewhere`:
        memory was freed that no tenant counts.
        """
        if self._members:
            self._schedule_time(now_ns, used_up)
        else:
            self._scheduler = Scheduler(self._config)
            self.shares, self.polled, self.due_ns = {}, (), now_ns + HEARTBEAT_NS
            self.muted, self.preemptors, self.turn_watch = frozenset(), frozenset(), None
            self._status_at_ns = -STATUS_MAX_AGE_NS
        due_ns = self.memory.is_due_at_ns
        if self._is_memory_news or is_freed_elsewhere or (due_ns is not None and due_ns <= now_ns):
            self._offer_memory(now_ns, is_freed_elsewhere)
            due_ns = self.memory.is_due_at_ns
        if due_ns is not None:
            self.due_ns = min(self.due_ns, due_ns)
        if self.memory.counters.waiting:  # freed memory changes the decision
            self.muted = frozenset()

    def preempt(self) -> None:
        """Withdraw the holder's grant until the next step, which follows at once."""
        name = self._holder
        if name in self._members and name in self._published:
            self._published[name] = nothing = self._published[name]._replace(
                granted_ns=0, exclusive_from_ns=0
            )
            publish(self._members[name], self.entry, nothing)

    def books_of(self, name: TenantName) -> tuple[Any, int]:
        """Return a tenant's usage segment as C sees it, and the index of the GPU there."""
        return self._members[name].usage.view, self._memory_seen[name].entry

    def _schedule_time(self, now_ns: int, used_up: QuantumExpiry | None) -> None:
        decision = self._scheduler.step(now_ns, self._seen, self._terms, used_up)
        published = self._published
        changed = [
            name
            for name, grant in decision.grants.items()
            if (was := published.get(name)) is not grant and was != grant
        ]
        # The tenant that loses the GPU gets its grant before the one that gains it.
        changed.sort(key=lambda name: name == decision.turn)
        for name in changed:
            published[name] = grant = decision.grants[name]
            publish(self._members[name], self.entry, grant)
        self.turns.record(now_ns, self._seen, self._terms, decision)
        self.polled, self.due_ns = decision.polled, decision.next_at_ns
        self.muted, self.turn_watch = decision.muted, decision.turn_watch
        self.preemptors, self._holder = decision.preemptors, decision.turn
        if now_ns - self._status_at_ns >= STATUS_MAX_AGE_NS:
            self._status_at_ns = now_ns
            self.shares = self._shares_of(decision)

    def _shares_of(self, decision: Decision) -> dict[TenantName, TenantShare]:
        statuses = self._scheduler.statuses()
        return {
            name: TenantShare(figures, decision.grants[name], decision.turn == name, statuses.get(name))
            for name, figures in self._seen.items()
        }

    def _offer_memory(self, now_ns: int, is_freed_elsewhere: bool) -> None:
        """Notify waiting tenants if memory was freed, and tell all tenants whether memory is wanted."""
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
    """Write a grant into a tenant's policy segment. A damaged segment is logged."""
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
