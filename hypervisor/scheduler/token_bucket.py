# SPDX-License-Identifier: Apache-2.0
"""Token bucket of GPU time, filled by the wall clock."""

from __future__ import annotations

from dataclasses import dataclass

INFINITE = float("inf")


@dataclass(slots=True)
class TokenBucket:
    """Token bucket. A negative `level_ns` is a debt, which must be paid before the next grant."""

    burst_ns: float
    """Wall time whose tokens fill the bucket."""
    level_ns: float = 0.0
    max_debt_ns: float = INFINITE
    """Wall time that pays the largest debt."""
    min_debt_ns: float = 0.0
    """Lower bound of the largest debt, in GPU time, so that time spent at once is paid in full."""

    def advance(self, elapsed_ns: int, spent_ns: float, rate: float) -> None:
        """Add the tokens of `elapsed_ns` at a rate between 0 and 1, then subtract `spent_ns`."""
        level_ns, most_ns = self.level_ns + elapsed_ns * rate, self.burst_ns * rate
        level_ns = (level_ns if level_ns < most_ns else most_ns) - spent_ns
        if level_ns < 0 and self.max_debt_ns != INFINITE:
            level_ns = max(level_ns, -max(self.max_debt_ns * rate, self.min_debt_ns))
        self.level_ns = level_ns

    def wall_ns_until(self, wanted_ns: float, rate: float) -> int:
        """Return the wall time until the level reaches `wanted_ns`."""
        lacking = wanted_ns - self.level_ns
        return int(lacking / max(rate, 0.001)) + 1 if lacking > 0 else 0
