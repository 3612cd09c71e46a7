# SPDX-License-Identifier: Apache-2.0
"""Settings of the workload."""

from __future__ import annotations

from dataclasses import dataclass

from limiter.errors import UsageError

BATCH_NS = 4_000_000
"""GPU time between two looks at how far the GPU has got; at most two batches are queued, so that the
workload never holds more than some milliseconds of the card in advance."""
MAX_BATCH = 256
BATCHES_QUEUED = 2
TOUCH_BLOCKS = 1024
"""Enough to keep a large card's memory busy. A single block would take so long for 1 GiB that few kernels fit
into a second, and a second's shares were those of whole kernels."""


@dataclass(frozen=True, slots=True)
class Burst:
    """`work_ns` of GPU time at the start of every `period_ns` of wall time."""

    work_ns: int
    period_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """One run of the workload.  Zero means: no bound, or not wanted."""

    kernel_ns: int = 500_000
    blocks: int = 0
    streams: int = 1
    threads: int = 1
    graph_kernels: int = 0
    touch: bool = False
    idle: bool = False
    burst: Burst | None = None
    seconds: float = 0.0
    launches: int = 0
    sync_every: int = 0
    memory_bytes: int = 0
    alloc: str = "plain"
    grow_bytes: int = 0
    grow_every_s: float = 0.1
    device: int = 0

    def check(self) -> None:
        """Raise UsageError where options contradict each other."""
        if self.touch and (not self.memory_bytes or self.alloc == "array"):
            raise UsageError("--touch needs --memory that kernels can address, so not --alloc array")
        if self.burst and (self.touch or self.threads > 1 or self.streams > 1):
            raise UsageError("--burst goes with one thread and one stream, and not with --touch")
        if self.burst and self.burst.work_ns > self.burst.period_ns:
            raise UsageError("--burst WORK/PERIOD: the work is longer than the period")

    @property
    def grid_blocks(self) -> int:
        """Return how many thread blocks a kernel has."""
        return self.blocks or (TOUCH_BLOCKS if self.touch else 1)

    @property
    def kernels_per_launch(self) -> int:
        return self.graph_kernels or 1

    @property
    def launch_ns(self) -> int:
        """GPU time that one launch asks for; 0 for the touch, which takes what it takes."""
        return 0 if self.touch else self.kernel_ns * self.kernels_per_launch

    @property
    def batch(self) -> int:
        """Launches between two looks."""
        if self.sync_every:
            return self.sync_every
        if self.burst:
            return max(1, self.burst.work_ns // max(1, self.launch_ns))
        if self.touch:
            return 4
        return min(MAX_BATCH, max(1, BATCH_NS // max(1, self.launch_ns)))

    def share_of_launches(self, thread: int) -> int | None:
        """Return how many of the launches asked for this thread makes; None: no bound."""
        if not self.launches:
            return None
        return self.launches // self.threads + (thread < self.launches % self.threads)
