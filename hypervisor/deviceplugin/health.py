# SPDX-License-Identifier: Apache-2.0
"""Whether a card can be offered: out at the first error, back after a while of good answers, by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypervisor.model import GpuUuid

RECOVERY_NS = 5_000_000_000
"""Good answers for so long bring a card back; a passing error costs no more than that."""


class DeviceHealth:
    """All cards ever seen."""

    def __init__(self, recovery_ns: int = RECOVERY_NS) -> None:
        self.healthy: dict[GpuUuid, bool] = {}
        self.flaps: Counter[GpuUuid] = Counter()
        """How often each has come back."""
        self._bad_at_ns: dict[GpuUuid, int] = {}
        self._recovery_ns = recovery_ns

    def look(self, answers: Mapping[GpuUuid, bool], *, now_ns: int) -> list[GpuUuid]:
        """Take in which cards answer well; return those whose standing has changed. A card that is not
        mentioned does not answer.
        """
        changed = []
        for gpu in {*self.healthy, *answers}:
            before = self.healthy.get(gpu)
            now = self._judge(gpu, answers.get(gpu, False), now_ns)
            if now != before:
                self.healthy[gpu] = now
                changed.append(gpu)
                self.flaps[gpu] += now and before is False
        return sorted(changed)

    def _judge(self, gpu: GpuUuid, answers: bool, now_ns: int) -> bool:
        if not answers:
            self._bad_at_ns[gpu] = now_ns
            return False
        bad_at_ns = self._bad_at_ns.get(gpu)
        return bad_at_ns is None or now_ns - bad_at_ns >= self._recovery_ns
