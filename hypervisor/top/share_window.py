# SPDX-License-Identifier: Apache-2.0
"""Shares of GPU time between two looks that are far enough apart to mean something. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

APART_S = 1.0
"""Who has the turn has all of the card, and work is charged as a whole: a shorter time says little."""
MIN_NS = 950_000_000
"""Timers and answers shift looks; those of one a second are far enough apart."""
MAX_LOOKS = 256
"""Kept at once, whatever their times say."""


class ShareWindow(Generic[T]):
    """Keeps looks as long as later ones are compared with them."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, T]] = deque(maxlen=MAX_LOOKS)

    def swap(self, at_ns: int, look: T) -> tuple[int, T] | None:
        """Keep a look, and return the newest that is a window older, with its time; None: there is none."""
        looks = self._looks
        while len(looks) > 1 and at_ns - looks[1][0] >= MIN_NS:
            looks.popleft()
        looks.append((at_ns, look))
        before_ns, before = looks[0]
        return (before_ns, before) if at_ns - before_ns >= MIN_NS else None


class Spent(Generic[K]):
    """Makes shares of counters of GPU time that only grow."""

    def __init__(self) -> None:
        self._window: ShareWindow[Mapping[K, int]] = ShareWindow()

    def shares(self, at_ns: int, spent_ns: Mapping[K, int]) -> dict[K, float]:
        """Return what part of the time since a window ago each one had, 0-1; `at_ns` is when they were read.

        Who was not there then, or has begun anew since, is left out.
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
    """Return a share; nobody has more than the whole card."""
    return min(1.0, spent_ns / wall_ns)
