# SPDX-License-Identifier: Apache-2.0
"""Counters of gangs' turns: their length, the reasons for their end, the time to drain. Pure.

Written by the dispatcher thread. Other threads read whole values, which are replaced and never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypervisor.scheduler.statistics import Histogram, milliseconds


@dataclass(frozen=True, slots=True)
class GangCounters:
    """Counters of all gangs at one moment."""

    ended: Mapping[str, int]
    """Number of turns by the reason of their end: quantum, idle, suspended, limit, preempted, moved, left,
    alone. "alone": no other tenant was left on the gang's GPUs.
    """
    turn: Histogram
    """Wall time of the turns."""
    drain: Histogram
    """Time from the end of a turn until its work was done on all GPUs."""


class GangStats:
    """Counts the turns of gangs."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}
        self._turn = milliseconds(5, 10, 20, 50, 100, 200, 500, 1000, 5000)
        self._drain = milliseconds(0.5, 1, 2, 5, 10, 20, 50)

    def record_turn(self, length_ns: int, reason: str) -> None:
        """Count a turn that ends. Dispatcher thread only."""
        self._turn.add(max(0, length_ns))
        self._ended = {**self._ended, reason: self._ended.get(reason, 0) + 1}

    def record_drain(self, length_ns: int) -> None:
        """Count the end of a drain, of this length. Dispatcher thread only."""
        self._drain.add(max(0, length_ns))

    def counters(self) -> GangCounters:
        """Return the counters. Any thread. Each number is exact; sums may be one turn apart."""
        return GangCounters(self._ended, self._turn.copy(), self._drain.copy())
