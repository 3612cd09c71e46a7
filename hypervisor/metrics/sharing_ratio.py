# SPDX-License-Identifier: Apache-2.0
"""Number of tenants that share a card, where no quota says what each has. Pure.

A file as of k8s-vgpu-monitor: one number; here also one a card or pod, `GPU-3430f778-…=4`, `0=4`,
`namespace/pod=2`, one a line. A pod's own number is stronger than its card's, and that than the general one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_RATIO = 1_000_000


@dataclass(frozen=True, slots=True)
class Ratios:
    """Content of a file."""

    general: float | None = None
    by_key: Mapping[str, float] = field(default_factory=dict)

    def of(self, *, gpu_uuid: str, gpu_index: int, namespace: str = "", pod: str = "") -> float | None:
        """Return the number for a pod on a card; None: the file says nothing of it."""
        keys = (f"{namespace}/{pod}" if pod else "", gpu_uuid, str(gpu_index))
        return next((self.by_key[key] for key in keys if key in self.by_key), self.general)


def parse(text: str) -> Ratios:
    """Return what a file says. Raises ValueError with the line."""
    general, by_key = None, {}
    for number, line in enumerate(text.splitlines(), start=1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        key, _, value = said.rpartition("=")
        try:
            ratio = float(value)
        except ValueError:
            ratio = math.nan
        if not 0 < ratio <= MAX_RATIO:
            raise ValueError(f"line {number}: {said[:60]!a} is not a number above 0")
        if key:
            by_key[key.strip()] = ratio
        else:
            general = ratio
    return Ratios(general, by_key)
