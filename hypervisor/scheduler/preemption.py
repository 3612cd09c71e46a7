# SPDX-License-Identifier: Apache-2.0
"""Preemption: pauses tenants of a GPU while work of tenants with a higher rank runs. Pure.

Work of a high class inside its request does not share the hardware's time slices. A starved interleaved
tenant gets at least what its request guarantees.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypervisor.model import TenantName
from hypervisor.scheduler.entitlements import Entitlements
from hypervisor.scheduler.entity import Entity
from hypervisor.scheduler.types import MS
from limiter.quota import PriorityClass

CONTEXT_SWITCH_NS = MS // 5
"""Time that a GPU needs to switch from one process to another. Measured by bench/fair.py as loss per turn."""


def outranks(entity: Entity, other: Entity | None) -> bool:
    """True if the entity ends the turn of `other`: it is of a high class, inside its request, and its rank
    is lower.
    """
    return other is not None and entity.rank <= -PriorityClass.HIGH and entity.rank < other.rank


class Preemption:
    """Preemption state of one GPU."""

    def __init__(self, entities: Mapping[TenantName, Entity], entitlements: Entitlements) -> None:
        self._entities = entities
        self._entitlements = entitlements
        self.rank = 0
        """Rank of the preempting tenants. Tenants of a higher rank are paused. 0 if no tenant is paused."""

    def update(self) -> None:
        """Set `rank` to the lowest rank with work that pauses other tenants. Set the entities'
        `pauses_others`.
        """
        ranks = []
        if self._entitlements.has_requests:
            ranks = [
                s.rank
                for s in self._entities.values()
                if s.rank
                and s.is_runnable
                and not (s.is_coordinated or s.is_shut_out)
                and (s.has_gpu_work if s.rank <= -PriorityClass.HIGH else s.is_starved)
            ]
        self.rank = first = min(ranks, default=0)
        for entity in self._entities.values():
            is_it = entity.rank == first and entity.is_starved
            entity.pauses_others = -PriorityClass.HIGH < first < 0 and is_it

    def is_paused(self, entity: Entity) -> bool:
        """True if the tenant is paused until a higher class has finished its work."""
        return self.rank < 0 and entity.rank > self.rank

    def account_overlap(self, looked_at: Collection[Entity], all_spent_ns: int) -> None:
        """Extend the expected end of preempting tenants' work by the other tenants' work on the GPU: their
        backlog when the preempting work began, and what they submitted before they were paused.
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
        """True if a higher class was active lately and may preempt this tenant at any time."""
        if not self._entitlements.has_high:
            return False
        above = (s for s in self._entities.values() if s.terms.priority > entity.terms.priority)
        return any(
            s.terms.priority >= PriorityClass.HIGH and s.terms.request_percent and s.was_lately_active
            for s in above
        )

    def preemptors(self, holder: Entity | None) -> frozenset[TenantName]:
        """Return the idle tenants whose next work would preempt the holder."""
        if holder is None or not self._entitlements.has_high:
            return frozenset()
        above = (
            (n, s)
            for n, s in self._entities.items()
            if s.is_runnable and not s.is_coordinated and outranks(s, holder)
        )
        return frozenset(name for name, entity in above if not entity.has_gpu_work)
