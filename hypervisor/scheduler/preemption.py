# SPDX-License-Identifier: Apache-2.0
"""Whose work the other tenants of a GPU wait for, and until when. Pure.

Work of a high class inside its request does not share the card's equal slices with others at all; and one
that slips in is not to be served worse by them than its request promises.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypervisor.model import TenantName
from hypervisor.scheduler.entitlements import Entitlements
from hypervisor.scheduler.entity import Entity
from hypervisor.scheduler.types import MS
from limiter.quota import PriorityClass

CONTEXT_SWITCH_NS = MS // 5
"""What it takes a card to turn from one process's work to another's (bench/fair.py: what is lost a turn)."""


def outranks(entity: Entity, other: Entity | None) -> bool:
    """It is of a class that others' turns end for; a request alone makes it the next, and no more."""
    return other is not None and entity.rank <= -PriorityClass.HIGH and entity.rank < other.rank


class Preemption:
    """Of one GPU's tenants."""

    def __init__(self, entities: Mapping[TenantName, Entity], entitlements: Entitlements) -> None:
        self._entities = entities
        self._entitlements = entitlements
        self.rank = 0
        """Of those that are waited for; 0: nobody is."""

    def update(self) -> None:
        """Find the highest class, as ranks have it, for whose work inside its request those below wait."""
        ranks = []
        if self._entitlements.has_requests:
            ranks = [
                s.rank
                for s in self._entities.values()
                if s.rank
                and s.is_runnable
                and (s.has_gpu_work if s.rank <= -PriorityClass.HIGH else s.is_starved)
            ]
        self.rank = first = min(ranks, default=0)
        for entity in self._entities.values():
            is_it = entity.rank == first and entity.is_starved
            entity.pauses_others = -PriorityClass.HIGH < first < 0 and is_it

    def is_paused(self, entity: Entity) -> bool:
        """It has to wait until a higher class has done its work."""
        return self.rank < 0 and entity.rank > self.rank

    def account_overlap(self, looked_at: Collection[Entity], all_spent_ns: int) -> None:
        """Tell those that others wait for what of the others is on the GPU with their work: what was queued
        when it began, and what came until they heard of it.
        """
        urgent = [s for s in looked_at if s.terms.priority >= PriorityClass.HIGH and s.has_gpu_work]
        late_ns = all_spent_ns - sum(s.spent_last_ns for s in urgent)
        for entity in urgent:
            if entity.has_begun:
                beside_ns = sum(s.backlog_ns for s in self._entities.values() if s is not entity)
                entity.extend_work(beside_ns + 2 * CONTEXT_SWITCH_NS if beside_ns else 0)
            elif self.rank:
                entity.extend_work(late_ns)

    def may_be_preempted(self, entity: Entity) -> bool:
        """A higher class may want the GPU any time."""
        if not self._entitlements.has_high:
            return False
        above = (s for s in self._entities.values() if s.terms.priority > entity.terms.priority)
        return any(
            s.terms.priority >= PriorityClass.HIGH and s.terms.request_percent and s.was_lately_active
            for s in above
        )

    def preemptors(self, holder: Entity | None) -> frozenset[TenantName]:
        """Return who does nothing now, and would be waited for by the holder if it did."""
        if holder is None or not self._entitlements.has_high:
            return frozenset()
        above = ((n, s) for n, s in self._entities.items() if s.is_runnable and outranks(s, holder))
        return frozenset(name for name, entity in above if not entity.has_gpu_work)
