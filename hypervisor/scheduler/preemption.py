# SPDX-License-Identifier: Apache-2.0
"""Whose work the other tenants of a GPU wait for, and until when. Pure.

Work of a high class inside its request does not share the card's equal slices with others at all; and one
that slips in is not to be served worse by them than its request promises.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypervisor.model import TenantName
from hypervisor.scheduler.entitlements import Parts
from hypervisor.scheduler.entity import Standing
from hypervisor.scheduler.types import MS
from limiter.quota import PriorityClass

SWITCH_NS = MS // 5
"""What it takes a card to turn from one process's work to another's (bench/fair.py: what is lost a turn)."""


def is_above(standing: Standing, other: Standing | None) -> bool:
    """It is of a class that others' turns end for; a request alone makes it the next, and no more."""
    return other is not None and standing.rank <= -PriorityClass.HIGH and standing.rank < other.rank


class Urgency:
    """Of one GPU's tenants."""

    def __init__(self, standings: Mapping[TenantName, Standing], parts: Parts) -> None:
        self._standings = standings
        self._parts = parts
        self.rank = 0
        """Of those that are waited for; 0: nobody is."""

    def decide(self) -> None:
        """Find the highest class, as ranks have it, for whose work inside its request those below wait."""
        ranks = []
        if self._parts.has_requests:
            ranks = [
                s.rank
                for s in self._standings.values()
                if s.rank and s.may_run and (s.is_working if s.rank <= -PriorityClass.HIGH else s.is_behind)
            ]
        self.rank = first = min(ranks, default=0)
        for standing in self._standings.values():
            is_it = standing.rank == first and standing.is_behind
            standing.holds_up_others = -PriorityClass.HIGH < first < 0 and is_it

    def hushes(self, standing: Standing) -> bool:
        """It has to wait until a higher class has done its work."""
        return self.rank < 0 and standing.rank > self.rank

    def note_work(self, looked_at: Collection[Standing], all_spent_ns: int) -> None:
        """Tell those that others wait for what of the others is on the GPU with their work: what was queued
        when it began, and what came until they heard of it.
        """
        urgent = [s for s in looked_at if s.terms.priority >= PriorityClass.HIGH and s.is_working]
        late_ns = all_spent_ns - sum(s.spent_last_ns for s in urgent)
        for standing in urgent:
            if standing.has_begun:
                beside_ns = sum(s.queued_ns for s in self._standings.values() if s is not standing)
                standing.lasts_longer(beside_ns + 2 * SWITCH_NS if beside_ns else 0)
            elif self.rank:
                standing.lasts_longer(late_ns)

    def may_come_above(self, standing: Standing) -> bool:
        """A higher class may want the GPU any time."""
        if not self._parts.has_high:
            return False
        above = (s for s in self._standings.values() if s.terms.priority > standing.terms.priority)
        return any(
            s.terms.priority >= PriorityClass.HIGH and s.terms.request_percent and s.was_lately_active
            for s in above
        )

    def preempting(self, holder: Standing | None) -> frozenset[TenantName]:
        """Return who does nothing now, and would be waited for by the holder if it did."""
        if holder is None or not self._parts.has_high:
            return frozenset()
        above = ((n, s) for n, s in self._standings.items() if s.may_run and is_above(s, holder))
        return frozenset(name for name, standing in above if not standing.is_working)
