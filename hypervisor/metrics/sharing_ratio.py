# SPDX-License-Identifier: Apache-2.0
"""Parses the number of tenants that share a card, for cards without quotas. Pure.

The file is that of k8s-vgpu-monitor: one number. In addition, lines may set it for a card or pod:
`GPU-3430f778-…=4`, `0=4`, `namespace/pod=2`. A pod's number wins over its card's, and that over the general
one.
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
        """Return the number for a pod on a card; None if the file has none for it."""
        keys = (f"{namespace}/{pod}" if pod else "", gpu_uuid, str(gpu_index))
        return next((self.by_key[key] for key in keys if key in self.by_key), self.general)


def parse(text: str) -> Ratios:
    """Return the content of a file. Raises ValueError, which names the line."""
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
