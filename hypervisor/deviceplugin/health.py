# SPDX-License-Identifier: Apache-2.0
"""Decides if a card is offered: it is withdrawn at the first error and returns after RECOVERY_NS of good
answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypervisor.model import GpuUuid

RECOVERY_NS = 5_000_000_000
"""Time of good answers after which a card is offered again."""


class DeviceHealth:
    """Health of all cards ever seen."""

    def __init__(self, recovery_ns: int = RECOVERY_NS) -> None:
        self.healthy: dict[GpuUuid, bool] = {}
        self.flaps: Counter[GpuUuid] = Counter()
        """Number of times that each card has recovered."""
        self._bad_at_ns: dict[GpuUuid, int] = {}
        self._recovery_ns = recovery_ns

    def look(self, answers: Mapping[GpuUuid, bool], *, now_ns: int) -> list[GpuUuid]:
        """Record which cards answer well; return those whose health has changed.

        A card that is missing in `answers` counts as not answering.
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
