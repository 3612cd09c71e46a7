# SPDX-License-Identifier: Apache-2.0
"""A token bucket of GPU time, filled by the wall clock."""

from __future__ import annotations

from dataclasses import dataclass

INFINITE = float("inf")


@dataclass(slots=True)
class TokenBucket:
    """`level_ns` may fall below 0, to `floor_ns`: a debt that is paid before anything else goes."""

    burst_ns: float
    """Wall time's worth that is kept."""
    level_ns: float = 0.0
    max_debt_ns: float = INFINITE
    """Wall time's worth of the deepest debt."""
    min_debt_ns: float = 0.0
    """GPU time of the deepest debt, if that is more: what is taken at once has to be paid whole."""

    def advance(self, elapsed_ns: int, spent_ns: float, rate: float) -> None:
        """Let wall time pass at a rate between 0 and 1, then pay for GPU time."""
        level_ns, most_ns = self.level_ns + elapsed_ns * rate, self.burst_ns * rate
        level_ns = (level_ns if level_ns < most_ns else most_ns) - spent_ns
        if level_ns < 0 and self.max_debt_ns != INFINITE:
            level_ns = max(level_ns, -max(self.max_debt_ns * rate, self.min_debt_ns))
        self.level_ns = level_ns

    def wall_ns_until(self, wanted_ns: float, rate: float) -> int:
        """Return how long until so much is there."""
        lacking = wanted_ns - self.level_ns
        return int(lacking / max(rate, 0.001)) + 1 if lacking > 0 else 0
