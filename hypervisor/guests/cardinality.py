# SPDX-License-Identifier: Apache-2.0
"""Bounds the number of GPUs that a guest may claim. Pure: time is an argument, in seconds.

A guest that claims other GPUs in each answer would create new series without end, and fill the memory of the
database that stores them. So the number of different GPUs is bounded over time. Known GPUs are always
admitted.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypervisor.metrics.snapshot import GuestGpu

MAX_CARDS = 64
"""Twice the bound of one page: a guest may get a complete new set of cards once."""
KEPT_S = 3600.0


class SeriesLimiter:
    """Bound for one guest, over all its starts."""

    def __init__(self) -> None:
        self._seen_at_s: dict[tuple[int, str, str], float] = {}

    def admitted(self, gpus: Iterable[GuestGpu], now_s: float) -> tuple[GuestGpu, ...]:
        """Return the known GPUs, and new ones while there is room."""
        for key in [key for key, at_s in self._seen_at_s.items() if now_s - at_s > KEPT_S]:
            del self._seen_at_s[key]
        found = []
        for gpu in gpus:
            key = gpu.index, gpu.uuid, gpu.name
            if key in self._seen_at_s or len(self._seen_at_s) < MAX_CARDS:
                self._seen_at_s[key] = now_s
                found.append(gpu)
        return tuple(found)
