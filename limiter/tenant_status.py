# SPDX-License-Identifier: Apache-2.0
"""Computes the rows of `gpulimit status` from two snapshots of the tenants.  Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from limiter.segment import LAUNCH_KINDS, Device, Usage
from limiter.tenants import TenantSnapshot
from limiter.units import show_bytes, show_ns

HEADINGS = (
    "TENANT",
    "GPU",
    "PROCS",
    "MEMORY",
    "MEM LIMIT",
    "SHARE",
    "TIME LIMIT",
    "GPU TIME",
    "WAITED",
    "REFUSED",
    "LAUNCHES",
)

SHORT_UUID = 12
"""Number of shown characters of a UUID."""


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One tenant on one GPU."""

    tenant: str
    uid: int
    gpu: str
    processes: int
    """Living processes of the tenant that have registered."""
    memory_used_bytes: int
    """Memory of living processes."""
    memory_booked_bytes: int
    """The same, with memory of ended processes that is not reaped yet."""
    memory_limit_bytes: int
    card_bytes: int
    compute_share: float | None
    """Share of the GPU between the two snapshots; None with one snapshot."""
    compute_limit_percent: int
    spent_ns: int
    throttled_ns: int
    throttled_count: int
    refused: int
    launches: dict[str, int]
    memory_waiting: int = 0
    """Living processes with an allocation that waits for memory."""
    memory_waits: int = 0
    """Allocations that had to wait."""
    memory_waited_ns: int = 0
    waits_for_others: bool = False
    """True if processes of the tenant were seen to wait for each other on this GPU."""
    is_coarse: bool = False
    """True if the wall clock measures GPU time of a living process: the driver refuses timing events."""


def rows(before: TenantSnapshot, after: TenantSnapshot) -> list[StatusRow]:
    """Return a row per tenant and GPU of the later snapshot."""
    return [
        row_of(usage, device, share_of(before, after, usage, device))
        for usage in after.usages.values()
        for device in usage.devices
    ]


def share_of(before: TenantSnapshot, after: TenantSnapshot, usage: Usage, device: Device) -> float | None:
    """Return a tenant's share of the GPU between two snapshots, 0-1; None if both are the same.

    GPU time is charged when work is submitted, and corrected when it is measured. Queued work is not counted.
    Work that is measured late counts at most for the time between the snapshots.
    """
    wall_ns = after.at_ns - before.at_ns
    if wall_ns <= 0:
        return None
    had_ns = usage.done_ns(device, after.at_ns) - done_before(before, usage, device)
    return min(1.0, max(0.0, had_ns / wall_ns))


def done_before(before: TenantSnapshot, usage: Usage, device: Device) -> int:
    """Return the GPU time used until the earlier snapshot; 0 if the segment was reset since."""
    earlier = before.usages.get(usage.tenant)
    if earlier is None or earlier.created_ns != usage.created_ns:
        return 0
    found = next((d for d in earlier.devices if d.uuid == device.uuid), None)
    return earlier.done_ns(found, before.at_ns) if found is not None else 0


def row_of(usage: Usage, device: Device, compute_share: float | None) -> StatusRow:
    living = [p for p in usage.processes if p.is_alive]
    accounts = usage.accounts(device)
    launches: Counter[str] = Counter(dict.fromkeys(LAUNCH_KINDS, 0))
    for account in accounts:
        launches.update(account.launches)
    return StatusRow(
        tenant=usage.tenant,
        uid=usage.owner_uid,
        gpu=device.name,
        processes=len(living),
        memory_used_bytes=sum(a.used_bytes for a in accounts),
        memory_booked_bytes=device.used_bytes,
        memory_limit_bytes=device.memory_limit_bytes,
        card_bytes=device.card_bytes,
        compute_share=compute_share,
        compute_limit_percent=device.compute_limit_percent,
        spent_ns=device.used_ns,
        throttled_ns=device.throttled_ns,
        throttled_count=device.throttled_count,
        refused=device.refused,
        launches=dict(launches),
        memory_waiting=sum(bool(account.memory_waiting) for account in accounts),
        memory_waits=device.memory_waits,
        memory_waited_ns=device.memory_waited_ns,
        waits_for_others=device.entry in usage.gang.entries,
        is_coarse=any(account.is_coarse for account in accounts),
    )


def gang_lines(rows: Sequence[StatusRow]) -> list[str]:
    """Return a line for each tenant that is a gang by itself: its processes wait for each other."""
    gpus: dict[str, list[str]] = {}
    for row in rows:
        if row.waits_for_others:
            gpus.setdefault(row.tenant, []).append(row.gpu[:SHORT_UUID])
    return [f"gang {tenant}: on {', '.join(here)}" for tenant, here in gpus.items() if len(here) > 1]


def as_data(row: StatusRow) -> dict[str, Any]:
    """Return a row for --json."""
    return dataclasses.asdict(row)


def cells(row: StatusRow) -> tuple[str, ...]:
    """Return a row's cells, in the order of HEADINGS."""
    limited = row.memory_limit_bytes < row.card_bytes
    share = "-" if row.compute_share is None else f"{row.compute_share:.1%}"
    return (
        row.tenant,
        row.gpu[:SHORT_UUID],
        str(row.processes),
        show_bytes(row.memory_used_bytes) + (f", {row.memory_waiting} wait" if row.memory_waiting else ""),
        show_bytes(row.memory_limit_bytes) if limited else "-",
        share,
        f"{row.compute_limit_percent}%" if row.compute_limit_percent < 100 else "-",
        show_ns(row.spent_ns),
        show_ns(row.throttled_ns),
        str(row.refused),
        f"{sum(row.launches.values()):,}",
    )


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return columns as wide as their widest cell."""
    widths = [max(len(c) for c in column) for column in zip(headings, *lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (headings, *lines)
    )
