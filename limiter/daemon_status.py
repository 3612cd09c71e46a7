# SPDX-License-Identifier: Apache-2.0
"""The daemon's part of `gpulimit status`: sources of quotas, shares, and activity. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from limiter.tenant_status import HEADINGS, SHORT_UUID, StatusRow, as_data, cells

MORE_HEADINGS = ("REQUEST", "WEIGHT", "PRIORITY", "SOURCE", "NOW")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One tenant on one GPU, with the daemon's data; None if the daemon does not know it."""

    row: StatusRow
    source: str | None = None
    pod: str = ""
    request_percent: int | None = None
    weight: int | None = None
    priority: str | None = None
    gang: str = ""
    """Id of the gang that the tenant is in; empty if it is in none."""
    now: str = ""
    """Activity: "runs", "waits", "waits for memory", "suspended", or the reason that its segment is
    unusable."""


def join(rows: Sequence[StatusRow], state: Mapping[str, Any]) -> list[NodeRow]:
    """Return the rows with the daemon's data; the daemon's limits replace those of the rows."""
    known = {
        (tenant["tenant"], gpu["uuid"]): (tenant, gpu)
        for tenant in state.get("tenants", ())
        for gpu in tenant["gpus"]
    }
    return [joined(row, known.get((row.tenant, row.gpu))) for row in rows]


def joined(row: StatusRow, known: tuple[Mapping[str, Any], Mapping[str, Any]] | None) -> NodeRow:
    if known is None:
        return NodeRow(row)
    tenant, gpu = known
    row = dataclasses.replace(
        row,
        memory_limit_bytes=min(gpu["memory_limit_bytes"], row.card_bytes),
        compute_limit_percent=gpu["compute_limit_percent"],
    )
    return NodeRow(
        row,
        source=tenant["source"],
        pod=tenant["pod"],
        request_percent=gpu["compute_request_percent"],
        weight=gpu["weight"],
        priority=gpu["priority"],
        gang=tenant.get("gang", {}).get("id") or "",
        now=doing(tenant, gpu),
    )


def doing(tenant: Mapping[str, Any], gpu: Mapping[str, Any]) -> str:
    if tenant["problem"]:
        return str(tenant["problem"])
    if tenant["suspended"]:
        return "suspended"
    if gpu.get("memory_waiting"):
        return "waits for memory"
    if gpu.get("turn") or gpu.get("outstanding_ns"):
        return "runs"
    return "waits" if gpu.get("waiting") else "idle"


def node_data(row: NodeRow) -> dict[str, Any]:
    """Return a row for --json."""
    more = {f.name: getattr(row, f.name) for f in dataclasses.fields(row) if f.name != "row"}
    return as_data(row.row) | more


def node_table(rows: Sequence[NodeRow]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and lines of the table."""
    return (*HEADINGS, *MORE_HEADINGS), [(*node_cells(row),) for row in rows]


def node_cells(row: NodeRow) -> tuple[str, ...]:
    request = f"{row.request_percent}%" if row.request_percent else "-"
    first, *rest = cells(row.row)
    return (
        row.pod or first,
        *rest,
        request,
        "-" if row.weight is None else str(row.weight),
        row.priority or "-",
        row.source or "-",
        row.now or "-",
    )


def gang_lines(state: Mapping[str, Any]) -> list[str]:
    """Return a line for each gang: its members, its GPUs, and if it is its turn."""
    lines = []
    for gang in state.get("gangs", ()):
        gpus = ", ".join(gpu[:SHORT_UUID] for gpu in gang["gpus"]) or "no GPU yet"
        turn = ", has its turn" if gang["turn"] else ""
        lines.append(f"gang {gang['id']}: {', '.join(gang['members'])} on {gpus}{turn}")
    return lines


def gpu_lines(state: Mapping[str, Any]) -> list[str]:
    """Return a line for each GPU that fails, or whose memory NVML does not report."""
    failed = [
        f"GPU {card['index']} {card['uuid']}".rstrip() + f" cannot be used: {card['error']}"
        for card in state.get("failed_gpus", ())
    ]
    told = [
        f"GPU {gpu['index']} ({gpu['uuid']}): memory by {gpu['memory_source']}, since NVML has no total"
        for gpu in state.get("gpus", ())
        if gpu.get("memory_source", "nvml") != "nvml"
    ]
    bad = [
        f"GPU {gpu.get('label', gpu['index'])} ({gpu['uuid']}): {gpu['error']}"
        for gpu in state.get("gpus", ())
        if gpu["error"]
    ]
    return failed + bad + told
