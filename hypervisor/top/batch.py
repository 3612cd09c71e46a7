# SPDX-License-Identifier: Apache-2.0
"""One reading for scripts, as JSON or CSV, and an exit status that tells how much could be read. Pure."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from typing import Any

from hypervisor.top.model import CardView, NodeView, TenantView, totals_of

SCHEMA = 1
ALL_THERE, NOTHING_THERE, BAD_USE, PARTLY_THERE = 0, 1, 2, 3
"""Exit statuses: everything was read; nothing was read; the command line is wrong; a part was read."""

HEADINGS = (
    "kind",
    "host",
    "health",
    "gpu_index",
    "gpu_uuid",
    "name",
    "state",
    "utilization_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_watts",
    "temperature_celsius",
    "share_achieved_ratio",
    "share_entitled_ratio",
    "limit_percent",
    "request_percent",
    "weight",
    "throttled",
    "throttled_seconds_total",
    "gpu_seconds_total",
    "allocations_denied_total",
    "enforcement",
    "source",
    "user",
    "processes",
    "pid",
    "gang",
)


def exit_status(nodes: Sequence[NodeView]) -> int:
    """Return 0 if all nodes are well, 1 if nothing was read, 3 if something is missing."""
    if not any(node.cards for node in nodes) and not any(node.health == "up" for node in nodes):
        return NOTHING_THERE
    return ALL_THERE if all(node.health == "up" for node in nodes) else PARTLY_THERE


def as_json(nodes: Sequence[NodeView], *, at_s: float) -> str:
    """Return one JSON object. `at_s` is the time of day in Unix seconds. An unknown value is null."""
    data = {
        "schema": SCHEMA,
        "at_s": round(at_s, 3),
        "totals": dataclasses.asdict(totals_of(tuple(nodes))),
        "nodes": [node_data(node) for node in nodes],
    }
    return json.dumps(data)


def node_data(node: NodeView) -> dict[str, Any]:
    data = dataclasses.asdict(node)
    del data["at_s"], data["may_change"], data["sees_all"]
    return data


def as_csv(nodes: Sequence[NodeView]) -> str:
    """Return a line per node, card, tenant, vGPU, MIG instance and process. Unknown cells are empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, HEADINGS, lineterminator="\n")
    writer.writeheader()
    for node in nodes:
        writer.writerow({"kind": "node", **where(node), "name": node.host, "state": "; ".join(node.problems)})
        for card in node.cards:
            writer.writerows(card_lines(node, card))
        for process in node.processes:
            writer.writerow(
                {
                    "kind": "process",
                    **where(node),
                    "gpu_index": process.card_index,
                    "gpu_uuid": process.card,
                    "name": process.tenant,
                    "memory_used_bytes": whole(process.memory_bytes),
                    "share_achieved_ratio": process.got,
                    "user": process.user,
                    "pid": process.pid,
                }
            )
    return out.getvalue()


def where(node: NodeView, card: CardView | None = None) -> dict[str, Any]:
    cells: dict[str, Any] = {"host": node.host, "health": node.health}
    if card is not None:
        cells |= {"gpu_index": card.index, "gpu_uuid": card.uuid}
    return cells


def card_lines(node: NodeView, card: CardView) -> list[dict[str, Any]]:
    place = where(node, card)
    lines = [
        {
            "kind": "gpu",
            **place,
            "name": card.name,
            "state": "lost" if card.is_lost else card.error or "ok",
            "utilization_ratio": card.utilization,
            "memory_used_bytes": whole(card.memory_bytes),
            "memory_total_bytes": whole(card.total_bytes),
            "power_watts": card.power_w,
            "temperature_celsius": card.temperature_c,
            "processes": card.processes,
        }
    ]
    lines += [
        {"kind": "tenant", **place, "gpu_uuid": uuid, **tenant_cells(tenant)}
        for uuid, tenants in card.on_parts()
        for tenant in tenants
    ]
    lines += [
        {
            "kind": "vgpu",
            **place,
            "name": vgpu.vm or vgpu.key,
            "state": {True: "active", False: "idle", None: ""}[vgpu.is_active],
            "utilization_ratio": vgpu.utilization,
            "memory_used_bytes": whole(vgpu.memory_bytes),
            "memory_total_bytes": whole(vgpu.total_bytes),
        }
        for vgpu in card.vgpus
    ]
    lines += [
        {
            "kind": "mig",
            **place,
            "name": mig.key,
            "state": mig.profile,
            "utilization_ratio": mig.utilization,
            "memory_used_bytes": whole(mig.memory_bytes),
            "memory_total_bytes": whole(mig.total_bytes),
        }
        for mig in card.migs
    ]
    return lines


def tenant_cells(tenant: TenantView) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "state": tenant.now,
        "memory_used_bytes": whole(tenant.memory_bytes),
        "memory_total_bytes": whole(tenant.quota_bytes),
        "share_achieved_ratio": tenant.got,
        "share_entitled_ratio": tenant.due,
        "limit_percent": tenant.limit_percent,
        "request_percent": tenant.request_percent,
        "weight": tenant.weight,
        "throttled": None if tenant.is_throttled is None else int(tenant.is_throttled),
        "throttled_seconds_total": tenant.waited_s,
        "gpu_seconds_total": tenant.gpu_s,
        "allocations_denied_total": tenant.denied,
        "enforcement": tenant.enforcement,
        "source": tenant.source,
        "user": tenant.user,
        "processes": tenant.processes,
        "gang": tenant.gang,
    }


def whole(value: float | None) -> int | None:
    return None if value is None else int(value)
