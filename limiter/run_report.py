# SPDX-License-Identifier: Apache-2.0
"""Measures the resources of one run for `gpulimit run --report`, by samples while it runs.

The segment has sums but no peaks, and forgets a dead process when another one takes its slot.  So the watcher
records both.  It can miss a peak that is shorter than the time between two samples.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from limiter import segment
from limiter.errors import LayoutMismatch
from limiter.quota import NO_LIMIT_PERCENT
from limiter.segment import LAUNCH_KINDS, Device, Usage
from limiter.units import show_bytes, show_ns

ProcessKey = tuple[int, int, int]
TICK_MS = 50
"""Time between two samples: a shorter peak can be missed."""


@dataclass(slots=True)
class DeviceRecord:
    """One GPU: its first and last sample, and the peak of memory in between."""

    first: Device | None
    last: Device
    peak_bytes: int = 0
    launches: dict[ProcessKey, dict[str, int]] = field(default_factory=dict)


class Watcher:
    """Samples the use of a tenant's processes."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.processes: set[ProcessKey] = set()
        self.devices: dict[int, DeviceRecord] = {}
        self._before = self._read()
        self._began_ns = time.monotonic_ns()
        """Time at which the first CUDA process of the run was seen; until then, the start of the run."""

    def _read(self) -> Usage | None:
        try:
            return segment.read(self.tenant)
        except (OSError, LayoutMismatch):
            return None

    def look(self) -> None:
        """Take one sample."""
        usage = self._read()
        if usage is None:
            return
        if usage.processes and not self.processes:
            self._began_ns = time.monotonic_ns()
        for device in usage.devices:
            record = self.devices.setdefault(device.entry, DeviceRecord(self._first(device), device))
            record.last = device
            record.peak_bytes = max(record.peak_bytes, device.used_bytes)
        for process in usage.processes:
            key = (process.slot, process.pid, process.start_ticks)
            self.processes.add(key)
            for account in process.accounts:
                if account.entry in self.devices:
                    self.devices[account.entry].launches[key] = account.launches

    def _first(self, device: Device) -> Device | None:
        """Return the device's state before the run, if the tenant existed already."""
        known = self._before.devices if self._before else ()
        return next((d for d in known if d.entry == device.entry and d.uuid == device.uuid), None)

    def describe(self) -> str:
        """Return the report."""
        self.look()
        wall_ns = time.monotonic_ns() - self._began_ns
        if not self.processes:
            return "gpulimit: no CUDA process registered, so nothing was limited"
        lines = [f"gpulimit: tenant {self.tenant}, {len(self.processes)} CUDA process(es)"]
        for record in self.devices.values():
            lines += describe_device(record, wall_ns)
        return "\n".join(lines)


def describe_device(record: DeviceRecord, wall_ns: int) -> list[str]:
    """Return the lines about one GPU."""
    last, first = record.last, record.first
    refused = last.refused - (first.refused if first else 0)
    spent_ns = last.used_ns - (first.used_ns if first else 0)
    throttled_ns = last.throttled_ns - (first.throttled_ns if first else 0)
    throttled = last.throttled_count - (first.throttled_count if first else 0)
    launches: Counter[str] = Counter()
    for counts in record.launches.values():
        launches.update(counts)
    kinds = ", ".join(f"{launches[kind]:,} {kind}" for kind in LAUNCH_KINDS if launches[kind]) or "none"
    entitled_ns = wall_ns * last.compute_limit_percent // NO_LIMIT_PERCENT
    memory = (
        f"peak {show_bytes(record.peak_bytes)} (looked at every {TICK_MS} ms) of "
        f"{show_bytes(last.memory_limit_bytes)}, {refused} refused"
    )
    limit = f"{last.compute_limit_percent} % of {show_ns(wall_ns)}"
    waits = f"{throttled:,} launches waited {show_ns(throttled_ns)}"
    return [
        f"  {last.name}",
        f"    memory    {memory}",
        f"    GPU time  {show_ns(spent_ns)} spent of {show_ns(entitled_ns)} ({limit}), {waits}",
        f"    launches  {kinds}",
    ]
