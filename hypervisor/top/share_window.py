# SPDX-License-Identifier: Apache-2.0
"""Computes shares of GPU time between two readings that are far enough apart to be meaningful. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

APART_S = 1.0
"""Shortest window. A shorter one mostly shows noise: the holder of a turn has the whole card, and work is
charged when it ends."""
MIN_WINDOW_NS = 950_000_000
"""APART_S less the jitter of timers and answers, so that readings once a second qualify."""
MAX_SAMPLES = 256
"""Bound on kept readings, independent of their times."""


class ShareWindow(Generic[T]):
    """Keeps readings as long as later readings are compared with them."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, T]] = deque(maxlen=MAX_SAMPLES)

    def swap(self, at_ns: int, look: T) -> tuple[int, T] | None:
        """Keep a reading. Return the newest earlier one that is at least a window older, with its time. None
        if there is none.
        """
        looks = self._looks
        while len(looks) > 1 and at_ns - looks[1][0] >= MIN_WINDOW_NS:
            looks.popleft()
        looks.append((at_ns, look))
        before_ns, before = looks[0]
        return (before_ns, before) if at_ns - before_ns >= MIN_WINDOW_NS else None


class Spent(Generic[K]):
    """Computes shares from monotonic counters of GPU time."""

    def __init__(self) -> None:
        self._window: ShareWindow[Mapping[K, int]] = ShareWindow()

    def shares(self, at_ns: int, spent_ns: Mapping[K, int]) -> dict[K, float]:
        """Return each key's share (0-1) of the last window; `at_ns` is the time of the reading.

        A key is left out if the older reading lacks it, or if its counter has been reset since.
        """
        found = self._window.swap(at_ns, dict(spent_ns))
        if found is None:
            return {}
        before_ns, before = found
        return {
            key: share(ns - before[key], at_ns - before_ns)
            for key, ns in spent_ns.items()
            if 0 <= before.get(key, -1) <= ns
        }


def share(spent_ns: int, wall_ns: int) -> float:
    """Return a share of wall time, at most 1: the whole card."""
    return min(1.0, spent_ns / wall_ns)
