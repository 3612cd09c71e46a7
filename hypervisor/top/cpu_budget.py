# SPDX-License-Identifier: Apache-2.0
"""A bound on the CPU that looking costs: looks at very many cards come less often. Pure.

The cost of a look grows with the cards, the tenants and the size of a page. The user's own interval is kept.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean

MAX_SHARE = 0.016
"""Bound on the part of one core, while nothing is typed."""
MAX_INTERVAL_S = 30.0
LOOKS = 3


class CpuBudget:
    """Keeps what the last looks cost."""

    def __init__(self) -> None:
        self._costs_s: deque[float] = deque(maxlen=LOOKS)
        self._used_s: float | None = None

    def interval_s(self, usual_s: float, used_s: float, *, is_disturbed: bool = False) -> float:
        """Return the interval to the next look; `used_s`: CPU that the process has used since its start.

        The mean of the last looks counts. `is_disturbed`: keys or a resized terminal cost CPU since the last
        one, which then says nothing.
        """
        if self._used_s is not None and not is_disturbed:
            self._costs_s.append(used_s - self._used_s)
        self._used_s = used_s
        if len(self._costs_s) < LOOKS:
            return usual_s
        return max(usual_s, min(MAX_INTERVAL_S, fmean(self._costs_s) / MAX_SHARE))
