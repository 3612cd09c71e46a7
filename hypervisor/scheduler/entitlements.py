# SPDX-License-Identifier: Apache-2.0
"""Keeps each tenant's part of one GPU, and works it out anew when what it depends on has changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.model import TenantName
from hypervisor.scheduler.entity import Standing
from hypervisor.scheduler.fair_share import entitlements, filled
from hypervisor.scheduler.types import Terms
from limiter.quota import PriorityClass
from limiter.units import PERCENT

BEHIND_QUANTA = 2
"""How far behind a tenant may be when it comes back: it does not save time up."""


class Parts:
    """Sets the standings' `entitled`, `part` and `behind_ns`."""

    def __init__(self, quantum_ns: int) -> None:
        self.has_requests = False
        self.has_high = False
        """Some tenant's work others may have to wait for."""
        self._quantum_ns = quantum_ns
        self._active: dict[TenantName, Terms] = {}
        self._wishes: list[float] = []
        self._is_stale = True

    def forget(self) -> None:
        """A tenant has come or gone, or has other terms."""
        self._is_stale = True

    def divide(self, standings: Mapping[TenantName, Standing]) -> list[Standing]:
        """Divide the GPU among those who want it; return these."""
        active = {name: s for name, s in standings.items() if s.is_active and s.may_run}
        if self._is_stale or active.keys() != self._active.keys():
            self._active = {name: standing.terms for name, standing in active.items()}
            self._entitle(standings)
            self._is_stale = True
        wishes = [standing.wish for standing in active.values()]
        if self._is_stale or wishes != self._wishes:
            self._wishes = wishes
            self._set(standings)
        self._is_stale = False
        return list(active.values())

    def _entitle(self, standings: Mapping[TenantName, Standing]) -> None:
        """What each gets if all want all they can get; one that does not, as if it did."""
        entitled = entitlements(self._active)
        for name, standing in standings.items():
            own = entitled.get(name)
            if own is None:
                own = entitlements({**self._active, name: standing.terms})[name]
            standing.entitled = own
            standing.behind_ns = BEHIND_QUANTA * self._quantum_ns / max(own, 0.01)
        terms = [standing.terms for standing in standings.values()]
        self.has_requests = any(t.request_percent for t in terms)
        self.has_high = any(t.priority >= PriorityClass.HIGH and t.request_percent for t in terms)

    def _set(self, standings: Mapping[TenantName, Standing]) -> None:
        """That, or more if others want less."""
        active = self._active
        wanted = {
            name: min(terms.limit_percent / PERCENT, wish)
            for (name, terms), wish in zip(active.items(), self._wishes, strict=True)
        }
        shared = filled(active, wanted)
        for name, standing in standings.items():
            part = max(standing.entitled, shared.get(name, 0.0))
            if part != standing.part:
                standing.part, standing.rests_until_ns = part, 0
