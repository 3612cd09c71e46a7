# SPDX-License-Identifier: Apache-2.0
"""A token bucket of GPU time, filled by the wall clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """`level_ns` may fall below 0, to `floor_ns`: a debt that is paid before anything else goes."""

    keep_ns: float
    """Wall time's worth that is kept."""
    level_ns: float = 0.0
    debt_ns: float = float("inf")
    """Wall time's worth of the deepest debt."""
    least_debt_ns: float = 0.0
    """GPU time of the deepest debt, if that is more: what is taken at once has to be paid whole."""

    def fill(self, elapsed_ns: int, rate: float) -> None:
        """Let wall time pass at a rate between 0 and 1."""
        self.level_ns = min(self.level_ns + elapsed_ns * rate, max(self.keep_ns * rate, 0.0))

    def take(self, spent_ns: float, rate: float) -> None:
        """Pay for GPU time."""
        self.level_ns -= spent_ns
        if self.debt_ns != float("inf"):
            self.level_ns = max(self.level_ns, -max(self.debt_ns * rate, self.least_debt_ns))

    def wall_ns_until(self, wanted_ns: float, rate: float) -> int:
        """Return how long until so much is there."""
        lacking = wanted_ns - self.level_ns
        return int(lacking / max(rate, 0.001)) + 1 if lacking > 0 else 0
