# SPDX-License-Identifier: Apache-2.0
"""Settings of a job of several ranks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

from limiter.errors import UsageError
from limiter.workload.settings import BATCH_NS, BATCHES_QUEUED, MAX_BATCH

ALLREDUCE = "allreduce"
PIPELINE = "pipeline"
NONE = "none"
COLLECTIVES = (ALLREDUCE, NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """One job.  A step is `kernels` kernels of `kernel_ns`, and what the ranks do together after them."""

    ranks: int
    mode: str = ALLREDUCE
    kernel_ns: int = 500_000
    kernels: int = 1
    collective_ns: int = 100_000
    seconds: float = 0.0
    steps: int = 0
    ahead_ns: int = 2 * BATCH_NS
    timeout_ns: int = 30_000_000_000
    device: int = 0
    one_gpu: bool = False
    simulated: str = ""
    environ: dict[int, dict[str, str]] = field(default_factory=dict)

    def check(self) -> None:
        """Raise UsageError where options contradict each other."""
        if unknown := [rank for rank in self.environ if rank >= self.ranks]:
            raise UsageError(f"--rank-env names rank {unknown[0]} of {self.ranks}, which count from 0")

    def device_of(self, rank: int) -> int:
        return self.device if self.one_gpu else self.device + rank

    def environ_of(self, rank: int) -> dict[str, str]:
        return self.environ.get(rank, {})

    @property
    def step_ns(self) -> int:
        """GPU time of a step on a card that has nothing else to do."""
        return self.kernels * self.kernel_ns + (self.collective_ns if self.mode == ALLREDUCE else 0)

    @property
    def batch(self) -> int:
        """Steps between two looks at how far the GPU has got."""
        most = max(1, MAX_BATCH // (self.kernels + 2))
        return min(most, max(1, self.ahead_ns // BATCHES_QUEUED // max(1, self.step_ns)))

    def as_data(self) -> dict[str, Any]:
        """Return what ranks need to know."""
        return dataclasses.asdict(self) | {"environ": {}}

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Self:
        return cls(**data)
