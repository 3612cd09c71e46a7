# SPDX-License-Identifier: Apache-2.0
"""Entitlement and share of each tenant of one GPU, recomputed when an input has changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.model import TenantName
from hypervisor.scheduler.entity import Entity
from hypervisor.scheduler.fair_share import entitlements, water_fill
from hypervisor.scheduler.types import SchedParams
from limiter.quota import PriorityClass
from limiter.units import PERCENT

MAX_LAG_QUANTA = 2
"""Bound of the vruntime lag of a returning tenant, in quanta. A tenant cannot save up unused time."""


class Entitlements:
    """Sets `entitlement`, `share` and `max_lag_ns` of the entities."""

    def __init__(self, quantum_ns: int) -> None:
        self.has_requests = False
        self.has_high = False
        """True if at least one tenant may preempt other tenants."""
        self._quantum_ns = quantum_ns
        self._active: dict[TenantName, SchedParams] = {}
        self._demands: list[float] = []
        self._is_stale = True

    def invalidate(self) -> None:
        """Recompute at the next update. Call this if a tenant joins, leaves, or gets another quota."""
        self._is_stale = True

    def update(self, entities: Mapping[TenantName, Entity]) -> list[Entity]:
        """Set the shares; return the entities that are active and runnable."""
        active = {name: s for name, s in entities.items() if s.is_competing}
        if self._is_stale or active.keys() != self._active.keys():
            self._active = {name: entity.terms for name, entity in active.items()}
            self._update_entitlements(entities)
            self._is_stale = True
        demands = [entity.demand for entity in active.values()]
        if self._is_stale or demands != self._demands:
            self._demands = demands
            self._update_shares(entities)
        self._is_stale = False
        return list(active.values())

    def _update_entitlements(self, entities: Mapping[TenantName, Entity]) -> None:
        """Set each entitlement: the tenant's share if every active tenant uses all it can get.

        The entitlement of an idle tenant is computed as if it was active too.
        """
        entitled = entitlements(self._active)
        for name, entity in entities.items():
            own = entitled.get(name)
            if own is None:
                own = entitlements({**self._active, name: entity.terms})[name]
            entity.entitlement = own
            entity.max_lag_ns = MAX_LAG_QUANTA * self._quantum_ns / max(own, 0.01)
        terms = [entity.terms for entity in entities.values()]
        self.has_requests = any(t.request_percent for t in terms)
        self.has_high = any(t.priority >= PriorityClass.HIGH and t.request_percent for t in terms)

    def _update_shares(self, entities: Mapping[TenantName, Entity]) -> None:
        """Set each share: the entitlement, plus time that other tenants do not demand."""
        active = self._active
        wanted = {
            name: min(terms.limit_percent / PERCENT, demand)
            for (name, terms), demand in zip(active.items(), self._demands, strict=True)
        }
        shared = water_fill(active, wanted)
        for name, entity in entities.items():
            share = max(entity.entitlement, shared.get(name, 0.0))
            if share != entity.share:
                entity.share, entity.parked_until_ns = share, 0
