# SPDX-License-Identifier: Apache-2.0
"""The GPUs that a guest has claimed to have. Pure: time is an argument, in seconds.

A guest that claims other GPUs each time it is asked would make new series without end, and fill the memory of
whoever keeps them. So the number of different ones is bounded over time; those known already go on.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypervisor.metrics.snapshot import GuestGpu

MOST = 64
"""Twice what one page may hold: a guest may be given other cards once."""
KEPT_S = 3600.0


class SeriesLimiter:
    """Of one guest, over all its starts."""

    def __init__(self) -> None:
        self._seen_at_s: dict[tuple[int, str, str], float] = {}

    def admitted(self, gpus: Iterable[GuestGpu], now_s: float) -> tuple[GuestGpu, ...]:
        """Return those that are known, or new while there is room."""
        for key in [key for key, at_s in self._seen_at_s.items() if now_s - at_s > KEPT_S]:
            del self._seen_at_s[key]
        found = []
        for gpu in gpus:
            key = gpu.index, gpu.uuid, gpu.name
            if key in self._seen_at_s or len(self._seen_at_s) < MOST:
                self._seen_at_s[key] = now_s
                found.append(gpu)
        return tuple(found)
