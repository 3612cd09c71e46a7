# SPDX-License-Identifier: Apache-2.0
"""Counters of a scheduler's decisions: turns, reasons for their end, waiting times. Pure.

Written by the dispatcher thread. Other threads read whole values, which are replaced and never changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypervisor.model import TenantName
from hypervisor.scheduler.types import MS, Decision, SchedParams, TenantUsage
from limiter.units import PERCENT


@dataclass(slots=True)
class Histogram:
    """Number of values by upper bound in ns. The last bucket has no bound."""

    bounds_ns: tuple[int, ...]
    counts: list[int] = field(default_factory=list)
    sum_ns: int = 0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds_ns) + 1)

    def add(self, value_ns: int) -> None:
        self.counts[bisect_left(self.bounds_ns, value_ns)] += 1
        self.sum_ns += value_ns

    def copy(self) -> Histogram:
        return Histogram(self.bounds_ns, list(self.counts), self.sum_ns)


def milliseconds(*bounds: float) -> Histogram:
    return Histogram(tuple(int(bound * MS) for bound in bounds))


@dataclass(frozen=True, slots=True)
class SchedulerCounters:
    """Counters of one GPU at one moment."""

    rounds: int
    dropped: Mapping[str, int]
    turn: Histogram
    grant_wait: Histogram
    release: Histogram


class SchedulerStats:
    """Counts the decisions of one GPU's scheduler."""

    def __init__(self, quantum_ns: int) -> None:
        self._quantum_ns = quantum_ns
        self._rounds = 0
        self._dropped: dict[str, int] = {}
        self._turn = milliseconds(1, 2, 5, 10, 20, 50, 100, 500)
        self._grant_wait = milliseconds(1, 2, 5, 10, 20, 50, 100, 250, 1000, 5000)
        self._release = milliseconds(0.5, 1, 2, 5, 10, 20, 50, 100, 1000)
        self._holder: TenantName | None = None
        self._since_ns = 0
        self._spent_before_ns = 0
        self._held_since_ns: dict[TenantName, int] = {}
        self._draining: dict[TenantName, int] = {}

    def record(
        self,
        now_ns: int,
        seen: Mapping[TenantName, TenantUsage],
        terms: Mapping[TenantName, SchedParams],
        decision: Decision,
    ) -> None:
        """Count one decision. Dispatcher thread only."""
        self._rounds += 1
        if decision.turn != self._holder:
            self._end_turn(now_ns, seen, terms)
            self._holder, self._since_ns = decision.turn, now_ns
            if decision.turn is not None:
                self._spent_before_ns = seen[decision.turn].spent_ns
        self._note_waits(now_ns, seen, decision)
        for name in [n for n in self._draining if n not in seen or not seen[n].outstanding_ns]:
            self._release.add(max(0, now_ns - self._draining.pop(name)))

    def _end_turn(
        self, now_ns: int, seen: Mapping[TenantName, TenantUsage], terms: Mapping[TenantName, SchedParams]
    ) -> None:
        name = self._holder
        if name is None:
            return
        self._turn.add(max(0, now_ns - self._since_ns))
        reason = self._reason(name, now_ns, seen, terms)
        self._dropped[reason] = self._dropped.get(reason, 0) + 1
        if reason != "left":
            self._draining[name] = now_ns

    def _reason(
        self,
        name: TenantName,
        now_ns: int,
        seen: Mapping[TenantName, TenantUsage],
        terms: Mapping[TenantName, SchedParams],
    ) -> str:
        if name not in seen:
            return "left"
        if terms[name].is_suspended:
            return "suspended"
        used_ns = seen[name].spent_ns - self._spent_before_ns
        if used_ns >= self._quantum_ns or now_ns - self._since_ns >= 2 * self._quantum_ns:
            return "quantum"
        if not seen[name].waiting and not seen[name].outstanding_ns:
            return "idle"
        return "limit" if terms[name].limit_percent < PERCENT else "preempted"

    def _note_waits(self, now_ns: int, seen: Mapping[TenantName, TenantUsage], decision: Decision) -> None:
        held, grants = self._held_since_ns, decision.grants
        for name, figures in seen.items():
            grant = grants[name]
            if figures.waiting and grant.is_shared and grant.granted_ns <= figures.spent_ns:
                if name not in held:
                    held[name] = now_ns
            elif name in held:
                self._grant_wait.add(max(0, now_ns - held.pop(name)))
        for name in [n for n in self._held_since_ns if n not in seen]:
            del self._held_since_ns[name]

    def counters(self) -> SchedulerCounters:
        """Return the counters. Any thread. Each number is exact; sums may be one decision apart."""
        return SchedulerCounters(
            self._rounds,
            dict(self._dropped),
            self._turn.copy(),
            self._grant_wait.copy(),
            self._release.copy(),
        )
