# SPDX-License-Identifier: Apache-2.0
"""Whether a tenant makes use of exclusive turns: part of its turns in which the GPU had its work to do."""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.scheduler.types import MS

RESUME_UTILIZATION, MIN_UTILIZATION = 0.85, 0.75
"""Part of a turn that must be used to be given turns again, and below which there are no more."""
FEW_TURNS = 5
"""So many are looked at before one is judged: a busy host spoils one or two for anybody."""
PROBE_NS = 1_000 * MS
"""How long a tenant that did not fill its turns waits for another chance."""


@dataclass(slots=True)
class TurnUtilization:
    """What one tenant's turns were like."""

    level: float = 1.0
    turns: int = 0
    probe_at_ns: int | None = None
    """It gets no turns until then; None: it does."""

    def takes_turns(self, now_ns: int) -> bool:
        return self.probe_at_ns is None or now_ns >= self.probe_at_ns

    def record_turn(self, used: float, now_ns: int) -> None:
        """A turn, of which a part was used, has ended."""
        if self.probe_at_ns is not None:
            self.probe_at_ns = now_ns + PROBE_NS if used < RESUME_UTILIZATION else None
            self.level, self.turns = used, 0
            return
        self.turns += 1
        self.level += (used - self.level) / min(self.turns, FEW_TURNS)
        if self.turns >= FEW_TURNS and self.level < MIN_UTILIZATION:
            self.probe_at_ns = now_ns + PROBE_NS
