# SPDX-License-Identifier: Apache-2.0
"""How one GPU is divided: who is on it, what its arbiter and its memory queue decide, and what of that has
been published. Used by the arbitration's thread alone, but for what says otherwise.
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
"""The longest between two looks."""
UINT64_MAX = (1 << 64) - 1
"""A tenant that says it has spent this much is granted no more than fits."""
STATUS_MAX_AGE_NS = 50_000_000
"""How old what people are shown may be."""


@dataclass(frozen=True, slots=True)
class TenantHandle:
    """One tenant in the roster."""

    tenant: TenantName
    usage: UsageSegment
    policy: PolicySegment
    terms: Mapping[GpuUuid, SchedParams]


@dataclass(frozen=True, slots=True)
class TenantShare:
    """A tenant on one GPU at the last look, for people and metrics."""

    seen: TenantUsage
    grant: Grant
    has_turn: bool
    status: EntityStatus | None = None
    """None: it is alone."""


class RunQueue:
    """One GPU, whose place in every policy is `entry`."""

    def __init__(self, config: SchedulerConfig, gpu: GpuUuid, entry: int) -> None:
        self.gpu = gpu
        self.entry = entry
        self.due_ns = 0
        """When it is to be divided anew, if nobody rings before."""
        self.polled: Collection[TenantName] = ()
        """Who is to be looked at before that."""
        self.muted: frozenset[TenantName] = frozenset()
        """Whose rings are no news."""
        self.preemptors: frozenset[TenantName] = frozenset()
        """Whose rings have the holder make room before anything else is looked at."""
        self.turn_watch: TurnWatch | None = None
        """When it is over, the GPU is to be divided anew too."""
        self.turns = SchedulerStats(config.quantum_ns)
        self.memory = MemoryWaitQueue()
        self.shares: Mapping[TenantName, TenantShare] = {}
        """Replaced and never changed, so that any thread may read it."""
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
        """A tenant is on the GPU, under these terms and with these figures."""
        name = member.tenant
        self._members[name] = member
        self._terms[name] = member.terms[self.gpu]
        if self._seen.get(name) != figures.time:  # what is the same stays the same object: see the arbiter
            self._seen[name] = figures.time
        if self._memory_seen.get(name) != figures.memory:
            self._memory_seen[name] = figures.memory
            self._is_memory_news = True

    def dequeue(self, name: TenantName) -> None:
        """A tenant is on the GPU no more."""
        if self._members.pop(name, None) is not None:
            del self._seen[name], self._terms[name], self._memory_seen[name]
            self._is_memory_news = True

    def forget(self, name: TenantName) -> None:
        """What was published to a tenant counts no more."""
        self._published.pop(name, None)
        self._wanted.pop(name, None)
        self._is_memory_news = True

    def schedule(self, now_ns: int, *, used_up: QuantumExpiry | None, is_freed_elsewhere: bool) -> None:
        """Decide anew, and publish it. `used_up`: what the vigil has found; `is_freed_elsewhere`: memory came
        free that is in nobody's books.
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
        if self.memory.counters.waiting:  # memory that is given back is news
            self.muted = frozenset()

    def preempt(self) -> None:
        """The holder is to submit no more until the GPU is divided anew, which is about to be done."""
        name = self._holder
        if name in self._members and name in self._published:
            self._published[name] = nothing = self._published[name]._replace(
                granted_ns=0, exclusive_from_ns=0
            )
            publish(self._members[name], self.entry, nothing)

    def books_of(self, name: TenantName) -> tuple[Any, int]:
        """Return a tenant's usage segment as C sees it, and the GPU's place there."""
        return self._members[name].usage.view, self._memory_seen[name].entry

    def _schedule_time(self, now_ns: int, used_up: QuantumExpiry | None) -> None:
        decision = self._scheduler.step(now_ns, self._seen, self._terms, used_up)
        published = self._published
        changed = [
            name
            for name, grant in decision.grants.items()
            if (was := published.get(name)) is not grant and was != grant
        ]
        # Who loses the GPU hears of it before who gets it.
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
        """Let those who wait for memory know when some has come free."""
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
    """Tell a tenant how far it may go on one GPU."""
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
