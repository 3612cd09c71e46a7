# SPDX-License-Identifier: Apache-2.0
"""Who waits for memory of a GPU, and when to tell them that some may have come free. Pure.

What comes free is not kept for anybody: all who wait are told, try again, and who finds room has it. Who is
not told looks by itself now and then, so a word that is lost, or comes too often, costs time and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hypervisor.model import TenantName

MIN_NOTIFY_INTERVAL_NS = 5_000_000
"""Between two words to those who wait: a tenant that gives back all the time must not wear them out."""
MAX_WAITS = 1 << 20
"""Between two looks; books that say more are wrong."""


class MemoryWaitState(NamedTuple):
    """What a tenant's books say of one GPU: all of it may be wrong."""

    entry: int
    """The GPU's place in its books."""
    waiting: int = 0
    """Processes with an allocation that waits."""
    freed: int = 0
    """How often something was given back that somebody wanted, modulo 2**32."""
    waits: int = 0
    """Allocations that have had to wait."""


@dataclass(frozen=True, slots=True)
class MemoryWaitCounters:
    """Counts of one GPU."""

    waits: int = 0
    """Allocations that were made to wait."""
    notified: int = 0
    """Tenants told that memory may have come free."""
    waiting: int = 0
    """Tenants that wait now."""


@dataclass(frozen=True, slots=True)
class MemoryDecision:
    """What one look decides."""

    is_wanted: bool
    """Tenants on the GPU are to ring when they give memory back."""
    notify: frozenset[TenantName]


@dataclass(slots=True)
class MemoryWaitQueue:
    """One GPU. Replaces `tally`, and never changes it, so that any thread may read it."""

    counters: MemoryWaitCounters = MemoryWaitCounters()
    _seen: dict[TenantName, MemoryWaitState] = field(default_factory=dict)
    _notified_at_ns: int = -MIN_NOTIFY_INTERVAL_NS
    _is_news: bool = False

    def step(
        self, now_ns: int, seen: Mapping[TenantName, MemoryWaitState], *, freed_elsewhere: bool = False
    ) -> MemoryDecision:
        """Take in what the books say now. `freed_elsewhere`: memory came free that is in nobody's books, or
        a dead process's.
        """
        before, self._seen = self._seen, dict(seen)
        waits = sum(
            min(MAX_WAITS, max(0, now.waits - before[name].waits if name in before else now.waiting))
            for name, now in seen.items()
        )
        waiting = frozenset(name for name, now in seen.items() if now.waiting)
        has_freed = any(name in before and now.freed != before[name].freed for name, now in seen.items())
        self._is_news |= has_freed or freed_elsewhere or not before.keys() <= seen.keys()
        notify: frozenset[TenantName] = frozenset()
        if not waiting:
            self._is_news = False
        elif self._is_news and now_ns - self._notified_at_ns >= MIN_NOTIFY_INTERVAL_NS:
            self._is_news, self._notified_at_ns, notify = False, now_ns, waiting
        old = self.counters
        self.counters = MemoryWaitCounters(old.waits + waits, old.notified + len(notify), len(waiting))
        return MemoryDecision(bool(waiting), notify)

    @property
    def is_due_at_ns(self) -> int | None:
        """When there is something to tell, or None."""
        return self._notified_at_ns + MIN_NOTIFY_INTERVAL_NS if self._is_news else None
