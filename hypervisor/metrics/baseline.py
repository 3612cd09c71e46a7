# SPDX-License-Identifier: Apache-2.0
"""Estimates the memory of a process beyond its requests: contexts, code, libraries' own memory. Pure.

Samples are only used while a process holds little, since NVML's figure lags behind allocations and frees.
"""

from __future__ import annotations

from collections.abc import Set

ALPHA = 0.2
LITTLE_BYTES = 256 << 20
MIN_BASELINE_BYTES, MAX_BASELINE_BYTES = 256 << 20, 4 << 30
Key = tuple[int, int, str]
"""(host pid, start time, GPU)."""


class Baselines:
    """Moving averages, one for each process and card."""

    def __init__(self) -> None:
        self._average: dict[Key, float] = {}

    def note(self, key: Key, nvml_bytes: int, tracked_bytes: int) -> None:
        """Use a sample, if the process holds little."""
        if tracked_bytes >= LITTLE_BYTES:
            return
        sample = float(max(0, nvml_bytes - tracked_bytes))
        before = self._average.get(key)
        self._average[key] = sample if before is None else before + ALPHA * (sample - before)

    def of(self, key: Key) -> float | None:
        """Return a process's baseline; None if it has always held much."""
        average = self._average.get(key)
        return None if average is None else min(MAX_BASELINE_BYTES, max(MIN_BASELINE_BYTES, average))

    def keep(self, processes: Set[tuple[int, int]]) -> None:
        """Forget all processes except these."""
        self._average = {key: value for key, value in self._average.items() if key[:2] in processes}
