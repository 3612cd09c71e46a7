# SPDX-License-Identifier: Apache-2.0
"""Bound of the CPU time that `gpulimit top` uses: with very many cards, it reads less often. Pure.

The cost of a reading grows with the cards, the tenants and the size of a page. The interval is never shorter
than the user's.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean

MAX_SHARE = 0.016
"""Bound of the used fraction of one core, while no key is pressed."""
MAX_INTERVAL_S = 30.0
LOOKS = 3


class CpuBudget:
    """Keeps the CPU time of the last LOOKS readings."""

    def __init__(self) -> None:
        self._costs_s: deque[float] = deque(maxlen=LOOKS)
        self._used_s: float | None = None

    def interval_s(self, usual_s: float, used_s: float, *, is_disturbed: bool = False) -> float:
        """Return the interval to the next reading, by the mean cost of the last ones.

        `used_s`: CPU time of the process since its start. `is_disturbed`: keys or a resized terminal have
        cost CPU time since the last reading. The CPU time since then is not counted.
        """
        if self._used_s is not None and not is_disturbed:
            self._costs_s.append(used_s - self._used_s)
        self._used_s = used_s
        if len(self._costs_s) < LOOKS:
            return usual_s
        return max(usual_s, min(MAX_INTERVAL_S, fmean(self._costs_s) / MAX_SHARE))
