# SPDX-License-Identifier: Apache-2.0
"""The local node without a daemon: cards from NVML, tenants from their usage segments."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict
from typing import Any

from hypervisor.host.names import Names
from hypervisor.model import GpuSample, Readings
from hypervisor.nvml.client import Nvml
from hypervisor.top.assemble import IDLE_REASONS, in_order, mig_of, placed, vgpu_host_of, vgpu_of
from hypervisor.top.model import CardView, Now, TenantView
from hypervisor.top.processes import ProcessUse
from hypervisor.top.share_window import ShareWindow
from hypervisor.top.text import clean
from limiter import environment, tenants
from limiter.segment import Usage
from limiter.tenant_status import StatusRow, rows

FRESH_S = 5.0


class Cards:
    """Calls NVML in a child process, as the daemon does: a call that hangs must not block the screen."""

    def __init__(self, *, is_simulated: bool, period_s: float) -> None:
        self._environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        if is_simulated:
            environment.use_simulated_driver(self._environment)
        self._period_s = period_s
        self._task: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self._at_s = 0.0
        self.samples: tuple[GpuSample, ...] = ()
        self.trouble = ""

    def start(self) -> None:
        if self._task is None:
            nvml = Nvml(self._environment, sampled=self._take, failed=self._fail, period_s=self._period_s)
            self._task = asyncio.create_task(nvml.run(), name="nvml")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def wait(self, seconds: float) -> None:
        """Wait until the child process has reported cards or a failure, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._answered.wait()
        except TimeoutError:
            self.trouble = self.trouble or f"NVML did not answer for {seconds:g} s"

    def _take(self, samples: tuple[GpuSample, ...]) -> None:
        self.samples, self.trouble, self._at_s = samples, "", time.monotonic()
        self._answered.set()

    def _fail(self, reason: str) -> None:
        self.trouble = reason
        self._answered.set()

    def is_fresh(self) -> bool:
        return bool(self.samples) and time.monotonic() - self._at_s <= FRESH_S + self._period_s


class UsageReader:
    """Reads tenants' usage segments, and keeps readings to compute differences.

    `read_at_ns`: time of the last reading.
    """

    def __init__(self) -> None:
        self._looks: ShareWindow[tenants.TenantSnapshot] = ShareWindow()
        self.read_at_ns = 0
        self._names = Names()

    def look(self) -> tuple[dict[str, list[TenantView]], list[ProcessUse], tuple[str, ...]]:
        """Return live tenants by card, their processes, and a text per unreadable segment."""
        now = tenants.snapshot()
        self.read_at_ns = now.at_ns
        earlier = self._looks.swap(now.at_ns, now)
        before = now if earlier is None else earlier[1]
        by_card: dict[str, list[TenantView]] = {}
        for row in rows(before, now):
            if row.processes:
                by_card.setdefault(row.gpu, []).append(self._tenant(row, now.usages[row.tenant]))
        held = [h for usage in now.usages.values() for h in held_by(usage)]
        problems = tuple(f"cannot read {clean(t)}: {clean(why)}" for t, why in now.unreadable.items())
        return by_card, held, problems

    def _tenant(self, row: StatusRow, usage: Usage) -> TenantView:
        is_suspended = any(d.is_suspended for d in usage.devices if d.name == row.gpu)
        is_limited = row.memory_limit_bytes < row.card_bytes
        is_gang = len(usage.gang_devices) > 1
        return TenantView(
            key=row.tenant,
            name=clean(row.tenant),
            now=now_of(row, is_suspended=is_suspended),
            enforcement="standalone",
            got=None if row.compute_share is None else min(1.0, row.compute_share),
            limit_percent=row.compute_limit_percent,
            memory_bytes=row.memory_used_bytes,
            quota_bytes=row.memory_limit_bytes if is_limited else None,
            is_over_quota=is_limited and row.memory_used_bytes > row.memory_limit_bytes,
            waited_s=row.throttled_ns / 1e9,
            gpu_s=row.spent_ns / 1e9,
            denied=row.refused,
            source="env",
            user=clean(self._names.user(row.uid)),
            processes=row.processes,
            gang=clean(row.tenant) if row.waits_for_others and is_gang else "",
        )


def now_of(row: StatusRow, *, is_suspended: bool) -> Now:
    if is_suspended:
        return "suspended"
    if row.compute_share is None:
        return "?"
    return "runs" if row.compute_share > 0 else "idle"


def held_by(usage: Usage) -> Iterator[ProcessUse]:
    uuids = {device.entry: device.name for device in usage.devices}
    for process in usage.processes:
        if process.is_alive and process.holder_pid is not None:
            for account in process.accounts:
                if account.entry in uuids and (account.contexts or account.used_bytes or account.spent_ns):
                    yield ProcessUse(
                        pid=process.holder_pid,
                        card=uuids[account.entry],
                        tenant=clean(usage.tenant),
                        name=clean(process.name),
                        memory_bytes=account.used_bytes,
                        spent_ns=account.spent_ns,
                    )


def cards_with(
    samples: tuple[GpuSample, ...], by_card: Mapping[str, list[TenantView]], limited: Set[int]
) -> tuple[CardView, ...]:
    """Return NVML's cards with their tenants, and cards of tenants that NVML does not list.

    `limited`: pids of the processes under a quota.
    """
    cards = [card_of(sample, limited) for sample in samples if sample.gpu.mig is None]
    return in_order(placed(cards, by_card))


def card_of(sample: GpuSample, limited: Set[int]) -> CardView:
    now = Readings() if sample.error else sample.readings
    pids = now.processes
    return CardView(
        uuid=clean(sample.gpu.uuid),
        index=sample.gpu.index,
        name=clean(sample.gpu.name),
        driver=clean(sample.readings.driver_version or ""),
        utilization=now.utilization_ratio,
        memory_busy=now.memory_utilization_ratio,
        memory_bytes=now.memory_used_bytes,
        total_bytes=sample.gpu.memory_bytes,
        power_w=now.power_watts,
        energy_j=now.energy_joules,
        temperature_c=now.temperature_celsius,
        clock_hz=now.clocks_hertz.get("sm"),
        held_down_by=tuple(r for r, holds in now.throttle_reasons.items() if holds and r not in IDLE_REASONS),
        is_lost=sample.is_lost,
        error=clean(sample.error),
        processes=None if pids is None else len(pids),
        unregistered=None if pids is None else len(pids.keys() - limited),
        **parts_of(sample),
    )


def parts_of(sample: GpuSample) -> dict[str, Any]:
    """Return a card's vGPUs and MIG devices. `assemble` builds them, as from a daemon's data."""
    found: dict[str, Any] = {}
    if sample.vgpu is not None:
        host = asdict(sample.vgpu)
        found |= {"vgpu_host": vgpu_host_of(host), "vgpus": tuple(map(vgpu_of, host["instances"]))}
    if sample.mig is not None:
        devices = asdict(sample.mig)["instances"]
        found |= {"mig_mode": sample.mig.is_enabled, "migs": tuple(map(mig_of, devices))}
    return found


def held_on(samples: tuple[GpuSample, ...]) -> Iterator[ProcessUse]:
    """Yield the processes that NVML lists. A process on a MIG device is yielded only for that device."""
    good = [sample for sample in samples if not sample.error]
    on_parts = {(s.gpu.index, pid) for s in good if s.gpu.mig is not None for pid, _ in s.pids}
    for sample in good:
        index = sample.gpu.index
        for pid, used in (sample.readings.processes or {}).items():
            if sample.gpu.mig is not None or (index, pid) not in on_parts:
                yield ProcessUse(pid=pid, card=sample.gpu.uuid, card_index=index, memory_bytes=used)
