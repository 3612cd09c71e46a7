# SPDX-License-Identifier: Apache-2.0
"""Samples the tenants' usage segments, and computes rates over time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from limiter import segment
from limiter.demo.tenants import DemoTenant
from limiter.errors import LayoutMismatch
from limiter.segment import Device


@dataclass(frozen=True, slots=True)
class UsageSample:
    """One tenant's usage of its GPU at one moment; all zero before it has registered."""

    at_s: float = 0.0
    registered: bool = False
    used_bytes: int = 0
    """Memory of living processes."""
    booked_bytes: int = 0
    """Memory that ended processes held and that is not reaped yet."""
    limit_bytes: int = 0
    refused: int = 0
    spent_ns: int = 0
    launches: int = 0
    """Sum over living processes."""


def look(actor: DemoTenant) -> UsageSample:
    """Read a tenant's usage segment."""
    now = time.monotonic()
    try:
        usage = segment.read(actor.tenant)
    except (OSError, LayoutMismatch):
        return UsageSample(now)
    device = busiest(usage.devices)
    if device is None:
        return UsageSample(now)
    accounts = [a for p in usage.processes if p.is_alive for a in p.accounts if a.entry == device.entry]
    return UsageSample(
        at_s=now,
        registered=bool(accounts),
        used_bytes=sum(a.used_bytes for a in accounts),
        booked_bytes=device.used_bytes,
        limit_bytes=device.memory_limit_bytes,
        refused=device.refused,
        spent_ns=device.spent_ns,
        launches=sum(sum(a.launches.values()) for a in accounts),
    )


def busiest(devices: Sequence[Device]) -> Device | None:
    """Return the GPU on which the tenant works; it may have entries for others."""
    return max(devices, key=lambda d: (d.used_bytes, d.spent_ns), default=None)


def cpu_waits_ns(pid: int) -> dict[int, int]:
    """Return the time for which each thread of a process has waited for a CPU since its start.

    Empty if the kernel does not count it, or if the process has ended.
    """
    waits = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            waits[int(task.name)] = int((task / "schedstat").read_text().split()[1])
    return waits


def waited(earlier: Mapping[int, int], later: Mapping[int, int], wall_s: float) -> float:
    """Return the fraction of time for which the most delayed thread waited for a CPU."""
    most_ns = max((ns - earlier.get(thread, 0) for thread, ns in later.items()), default=0)
    return most_ns / 1e9 / wall_s if wall_s > 0 else 0.0


def share(earlier: UsageSample, later: UsageSample) -> float:
    """Return a tenant's share of a GPU's time between two samples."""
    wall_s = later.at_s - earlier.at_s
    return (later.spent_ns - earlier.spent_ns) / 1e9 / wall_s if wall_s > 0 else 0.0
