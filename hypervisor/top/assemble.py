# SPDX-License-Identifier: Apache-2.0
"""Makes cards and tenants out of facts: what the daemon shows as `observed`, or the same out of metrics.

Pure. Facts are of another machine or another program: a field that is missing or of another type is not
known, and hides no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hypervisor.top.model import Card, Now, Tenant
from hypervisor.top.text import clean

Facts = Mapping[str, Any]
IDLE_REASONS = frozenset({"gpu_idle", "applications_clocks"})
"""Reasons for low clocks that nobody needs to be told of."""


def number_in(facts: Facts, name: str, most: float = math.inf) -> float | None:
    """Return a number that is one and lies in 0..most."""
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most and math.isfinite(value) else None


def text_in(facts: Facts, name: str) -> str:
    value = facts.get(name)
    return clean(value) if isinstance(value, str) else ""


def list_in(facts: Facts, name: str) -> list[Facts]:
    value = facts.get(name)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list | tuple) else []


def map_in(facts: Facts, name: str) -> Facts:
    value = facts.get(name)
    return value if isinstance(value, Mapping) else {}


def cards_of(observed: Facts) -> tuple[Card, ...]:
    """Return the cards with their tenants, in the node's order."""
    cards = {card.uuid: card for card in map(card_of, list_in(observed, "gpus"))}
    tenants: dict[str, list[Tenant]] = {}
    for client in list_in(observed, "clients"):
        tenants.setdefault(text_in(client, "gpu_uuid"), []).append(tenant_of(client))
    for uuid, here in tenants.items():
        # A tenant may be known before its card has answered.
        cards[uuid] = replace(cards.get(uuid, Card(uuid)), tenants=tuple(here))
    return in_order(cards.values())


def in_order(cards: Iterable[Card]) -> tuple[Card, ...]:
    return tuple(sorted(cards, key=lambda card: (card.index is None, card.index or 0, card.uuid)))


def card_of(gpu: Facts) -> Card:
    values, clocks = map_in(gpu, "values"), map_in(gpu, "clocks_hertz")
    reasons = gpu.get("throttle_reasons")
    index = number_in(gpu, "index")
    return Card(
        uuid=text_in(gpu, "uuid"),
        index=None if index is None else int(index),
        name=text_in(gpu, "name"),
        driver=text_in(gpu, "driver_version"),
        utilization=number_in(values, "gpu_utilization_ratio", 1),
        memory_busy=number_in(values, "gpu_memory_utilization_ratio", 1),
        memory_bytes=number_in(values, "gpu_memory_used_bytes"),
        total_bytes=number_in(values, "gpu_memory_total_bytes"),
        reserved_bytes=number_in(values, "gpu_memory_reserved_bytes"),
        requested=number_in(values, "gpu_compute_requested_ratio"),
        power_w=number_in(values, "gpu_power_watts"),
        energy_j=number_in(values, "gpu_energy_joules_total"),
        temperature_c=number_in(values, "gpu_temperature_celsius"),
        clock_hz=number_in(clocks, "sm"),
        held_down_by=tuple(clean(r) for r in reasons if r not in IDLE_REASONS)
        if isinstance(reasons, list | tuple)
        else (),
        is_lost=gpu.get("lost") is True,
        xids=tuple(sorted((clean(x), int(n)) for x, n in map_in(gpu, "xids").items() if is_count(n))),
        last_xid_at_s=number_in(values, "gpu_last_xid_timestamp_seconds"),
        processes=whole(number_in(values, "gpu_process_count")),
        unregistered=whole(number_in(values, "gpu_unregistered_process_count")),
    )


def is_count(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def tenant_of(client: Facts) -> Tenant:
    values = map_in(client, "values")
    namespace, pod = text_in(client, "namespace"), text_in(client, "pod")
    used = [
        number_in(values, name)
        for name in ("pod_gpu_memory_used", "client_nvml_used_bytes", "client_managed_allocated_bytes")
    ]
    got = number_in(values, "client_share_achieved_ratio")
    throttled = number_in(values, "client_throttled")
    effective = number_in(values, "client_core_quota_effective_percent")
    return Tenant(
        key=text_in(client, "tenant"),
        name=(f"{namespace}/{pod}" if namespace else pod) or text_in(client, "tenant"),
        now=now_of(got=got, throttled=throttled, effective=effective),
        enforcement=text_in(client, "state"),
        due=number_in(values, "client_share_entitled_ratio"),
        got=got,
        limit_percent=number_in(values, "client_core_quota_config_percent"),
        request_percent=number_in(values, "client_core_request_percent"),
        weight=number_in(values, "client_weight"),
        memory_bytes=next((n for n in used if n is not None), None),
        quota_bytes=number_in(values, "client_memory_quota_bytes") or None,
        is_over_quota=bool(number_in(values, "client_memory_quota_exceeded")),
        is_throttled=None if throttled is None else throttled > 0,
        waited_s=number_in(values, "client_throttled_seconds_total"),
        gpu_s=number_in(values, "client_gpu_seconds_total"),
        denied=int(sum(n for n in map_in(client, "denied").values() if is_count(n))),
        source=text_in(client, "source"),
        user=text_in(client, "user"),
        command=text_in(client, "command"),
    )


def now_of(*, got: float | None, throttled: float | None, effective: float | None) -> Now:
    """Return what a tenant does, as far as figures of the last window tell."""
    if effective == 0:
        return "suspended"
    if got:
        return "runs"
    if throttled:
        return "waits"
    return "?" if got is None else "idle"
