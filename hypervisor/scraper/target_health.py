# SPDX-License-Identifier: Apache-2.0
"""Decides when to scrape a target again, and how long its last page is shown. Pure; times in seconds.

    new ── page ─> up ── fails once ─> late ── fails again ─> down ── page ─> up

While a target is late, its last page is still shown, so that one lost answer does not make values flicker. A
target that is down is scraped less and less often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")
State = Literal["new", "up", "late", "down"]


@dataclass(frozen=True, slots=True)
class ScrapeTiming:
    """Periods between scrapes."""

    period_s: float = 3.0
    longest_s: float = 60.0
    """Longest time between two tries at a target that is down."""
    kept_failures: int = 1
    """Number of failures in a row during which the last page is shown."""


class TargetHealth(Generic[T]):
    """One exporter. `T` is the type of its parsed pages."""

    def __init__(self, pace: ScrapeTiming, *, first_at_s: float = 0.0) -> None:
        self.pace = pace
        self._page: T | None = None
        self._is_asked = False
        self.next_at_s = first_at_s
        self.failures = 0
        """Number of failures in a row."""
        self.reason = ""
        """Reason of the last failure; empty after a page."""
        self.last_page_at_s: float | None = None
        self.duration_s: float | None = None
        """Duration of the last try."""

    @property
    def state(self) -> State:
        if self.failures > self.pace.kept_failures or (self.failures and self._page is None):
            return "down"
        return "new" if self._page is None else "late" if self.failures else "up"

    @property
    def page(self) -> T | None:
        """Page to show; None if none is fresh enough."""
        return None if self.state == "down" else self._page

    @property
    def last_page(self) -> T | None:
        """The last page, however old."""
        return self._page

    def is_due(self, now_s: float) -> bool:
        return not self._is_asked and now_s >= self.next_at_s

    def ask(self, now_s: float) -> None:
        """Begin a try. `took` or `failed` ends it; until then no other is due."""
        self._is_asked = True
        self._began_at_s = now_s

    def took(self, page: T, now_s: float) -> None:
        """End a try with a page."""
        self._page, self.failures, self.reason = page, 0, ""
        self.last_page_at_s = now_s
        self._ended(now_s, self.pace.period_s)

    def failed(self, reason: str, now_s: float) -> None:
        """End a try with a failure. After the first one the period is as usual; then pauses double."""
        self.failures += 1
        self.reason = reason
        doublings = min(self.failures - 1, 30)
        self._ended(now_s, min(self.pace.period_s * 2**doublings, self._longest_s))

    @property
    def _longest_s(self) -> float:
        return max(self.pace.longest_s, self.pace.period_s)

    def _ended(self, now_s: float, pause_s: float) -> None:
        """Set the next try: a period after the last one's start, so that slow answers do not stretch it."""
        self._is_asked = False
        self.duration_s = now_s - self._began_at_s
        self.next_at_s = max(self._began_at_s + pause_s, now_s + self.pace.period_s / 10)


def staggered(index: int, count: int, over_s: float) -> float:
    """Return the delay of a target's first try, so that the tries of many targets are spread."""
    return over_s * index / max(count, 1)
