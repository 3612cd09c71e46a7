# SPDX-License-Identifier: Apache-2.0
"""Tenants that wait for memory of one GPU, and notification of freed memory. Pure.

Freed memory is not reserved. Every waiting tenant is notified and tries again, and the first that finds room
gets it. A tenant also retries without a notification, so a lost or needless notification costs only time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hypervisor.model import TenantName

MIN_NOTIFY_INTERVAL_NS = 5_000_000
"""Shortest time between two notifications. A tenant that frees memory all the time must not keep the waiting
tenants busy.
"""
MAX_WAITS = 1 << 20
"""Bound of the waits counted per tenant between two steps. The counter is untrusted."""


class MemoryWaitState(NamedTuple):
    """A tenant's memory counters of one GPU. Untrusted: each may have any value."""

    entry: int
    """Index of the GPU in the tenant's usage segment."""
    waiting: int = 0
    """Number of processes with an allocation that waits."""
    freed: int = 0
    """Number of frees while memory was wanted, modulo 2**32."""
    waits: int = 0
    """Number of allocations that have had to wait."""


@dataclass(frozen=True, slots=True)
class MemoryWaitCounters:
    """Counters of one GPU."""

    waits: int = 0
    """Number of allocations that have had to wait."""
    notified: int = 0
    """Number of notifications of freed memory."""
    waiting: int = 0
    """Number of tenants that wait now."""


@dataclass(frozen=True, slots=True)
class MemoryDecision:
    """Result of one step."""

    is_wanted: bool
    """True if the tenants on the GPU must ring their doorbell when they free memory."""
    notify: frozenset[TenantName]


@dataclass(slots=True)
class MemoryWaitQueue:
    """Memory wait queue of one GPU. `counters` is replaced and never changed, so any thread may read it."""

    counters: MemoryWaitCounters = MemoryWaitCounters()
    _seen: dict[TenantName, MemoryWaitState] = field(default_factory=dict)
    _notified_at_ns: int = -MIN_NOTIFY_INTERVAL_NS
    _is_news: bool = False

    def step(
        self, now_ns: int, seen: Mapping[TenantName, MemoryWaitState], *, freed_elsewhere: bool = False
    ) -> MemoryDecision:
        """Process the tenants' counters and return the decision. `freed_elsewhere`: memory was freed that no
        tenant counts, or that a dead process had allocated.
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
        """Time of the next notification. None if there is no notification to send."""
        return self._notified_at_ns + MIN_NOTIFY_INTERVAL_NS if self._is_news else None
