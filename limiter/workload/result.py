# SPDX-License-Identifier: Apache-2.0
"""Results of a run of the workload, for people and for programs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from limiter.units import show_bytes
from limiter.workload.settings import WorkloadSettings


@dataclass(slots=True, kw_only=True)
class Result:
    """Sums over all threads.  `completed` is None where the kernels could not count themselves."""

    device: str
    simulated: bool
    seconds: float = 0.0
    launches: int = 0
    kernels: int = 0
    completed: int | None = None
    memory_bytes: int = 0
    memory_refused: int = 0
    bursts_ms: list[float] = field(default_factory=list)

    def add(self, launches: int, kernels: int) -> None:
        self.launches += launches
        self.kernels += kernels


def percentile(values: list[float], percent: float) -> float:
    """Return the value below which `percent` of them lie; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def summary(settings: WorkloadSettings, result: Result) -> dict[str, Any]:
    """Return the result with what follows from it, for --json."""
    asked_s = settings.launch_ns * result.launches / 1e9
    wall_s = max(result.seconds, 1e-9)
    data = dataclasses.asdict(result)
    bursts = data.pop("bursts_ms")
    data["rate_per_s"] = round(result.launches / wall_s, 3)
    data["gpu_seconds"] = round(asked_s, 6)
    data["gpu_share"] = round(asked_s / wall_s, 5)
    data["alloc"] = settings.alloc
    if settings.burst:
        data["bursts"] = {
            "count": len(bursts),
            "p50_ms": round(percentile(bursts, 50), 3),
            "p99_ms": round(percentile(bursts, 99), 3),
            "max_ms": round(max(bursts, default=0.0), 3),
        }
    return data


def describe(data: dict[str, Any]) -> str:
    """Return the summary as a few lines for people."""
    lines = [
        f"{data['device']}",
        f"{data['seconds']:.2f} s: {data['launches']:,} launches, {data['rate_per_s']:,.1f} a second",
    ]
    if data["gpu_seconds"]:
        lines.append(
            f"GPU time of the kernels: {data['gpu_seconds']:.3f} s, {data['gpu_share']:.1%} of one GPU"
        )
    if data["completed"] is not None and data["completed"] != data["kernels"]:
        lines.append(f"WARNING: {data['completed']:,} of {data['kernels']:,} kernels counted themselves")
    if data["memory_bytes"] or data["memory_refused"]:
        refused = f", {data['memory_refused']} refused" if data["memory_refused"] else ""
        lines.append(f"memory: {show_bytes(data['memory_bytes'])} ({data['alloc']}){refused}")
    if bursts := data.get("bursts"):
        lines.append(
            f"{bursts['count']} bursts: p50 {bursts['p50_ms']} ms, p99 {bursts['p99_ms']} ms, "
            f"longest {bursts['max_ms']} ms"
        )
    return "\n".join(lines)
