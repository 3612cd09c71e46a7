# SPDX-License-Identifier: Apache-2.0
"""Fraction of a tenant's turns in which the GPU ran the tenant's work. A tenant with a low fraction gets no
exclusive turns. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.scheduler.types import MS

RESUME_UTILIZATION, MIN_UTILIZATION = 0.85, 0.75
"""Utilization of a trial turn from which a tenant gets turns again, and average below which it loses them."""
FEW_TURNS = 5
"""Number of turns before the average counts: a busy host reduces the utilization of single turns."""
PROBE_NS = 1_000 * MS
"""Time until a tenant that lost its turns gets a trial turn."""


@dataclass(slots=True)
class TurnUtilization:
    """Average utilization of one tenant's turns."""

    level: float = 1.0
    turns: int = 0
    probe_at_ns: int | None = None
    """Time of the next trial turn. None if the tenant gets turns."""

    def takes_turns(self, now_ns: int) -> bool:
        return self.probe_at_ns is None or now_ns >= self.probe_at_ns

    def record_turn(self, used: float, now_ns: int) -> None:
        """Record the end of a turn. `used`: the fraction of it in which the GPU ran the tenant's work."""
        if self.probe_at_ns is not None:
            self.probe_at_ns = now_ns + PROBE_NS if used < RESUME_UTILIZATION else None
            self.level, self.turns = used, 0
            return
        self.turns += 1
        self.level += (used - self.level) / min(self.turns, FEW_TURNS)
        if self.turns >= FEW_TURNS and self.level < MIN_UTILIZATION:
            self.probe_at_ns = now_ns + PROBE_NS
