# SPDX-License-Identifier: Apache-2.0
"""Recent values of every figure that has a graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence

from hypervisor.top.model import ClusterTotals, NodeView

LENGTH = 240
HOT_C = 100.0
"""Temperatures are kept as fractions of this one."""
Series = deque[float | None]


class History:
    """Keeps the last values by host, card and figure. The series of a card that is gone is dropped."""

    def __init__(self, length: int = LENGTH) -> None:
        self._length = length
        self._series: dict[Hashable, Series] = {}

    def note(self, nodes: Iterable[NodeView], totals: ClusterTotals) -> None:
        """Record a reading. A node that has not answered leaves a gap."""
        fresh: dict[Hashable, float | None] = {
            ("", "util"): totals.utilization,
            ("", "mem"): ratio(totals.memory_bytes, totals.total_bytes),
        }
        for node in nodes:
            is_new = node.health in ("up", "partial")
            for card in node.cards:
                fresh[node.host, card.uuid, "util"] = card.utilization if is_new else None
                fresh[node.host, card.uuid, "mem"] = card.memory_ratio if is_new else None
                fresh[node.host, card.uuid, "power"] = card.power_w if is_new else None
                fresh[node.host, card.uuid, "heat"] = ratio(card.temperature_c, HOT_C) if is_new else None
        series = {}
        for key, value in fresh.items():
            kept = self._series.get(key)
            if kept is None:
                kept = deque(maxlen=self._length)
            kept.append(value)
            series[key] = kept
        self._series = series

    def of(self, *key: str) -> Sequence[float | None]:
        return self._series.get(key, ())

    def relative(self, *key: str) -> list[float | None]:
        """Return the values of a series as fractions of its maximum."""
        series = self.of(*key)
        top = max((value for value in series if value is not None), default=0.0)
        return [ratio(value, top) for value in series]


def ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
