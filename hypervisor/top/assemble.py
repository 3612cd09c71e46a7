# SPDX-License-Identifier: Apache-2.0
"""Builds cards and tenants from facts: the daemon's `observed` data, or the same data parsed from metrics.

Pure. Facts come from another machine or program. A field that is missing or has another type is None. The
other fields are unaffected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypervisor.top.model import CardView, Mig, Now, TenantView, Vgpu, VgpuHostView
from hypervisor.top.text import clean, number
from limiter.vgpu import ARR_MODES, POLICIES

Facts = Mapping[str, Any]
HOST_MODES = {"non_sriov": "non-SR-IOV", "sriov": "SR-IOV"}
IDLE_REASONS = frozenset({"gpu_idle", "applications_clocks"})
"""Reasons for low clocks that are not shown: they are normal on an idle GPU."""


def number_in(facts: Facts, name: str, most: float = math.inf) -> float | None:
    """Return a field as a number. None if it is not a number from 0 to `most`."""
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


def cards_of(observed: Facts) -> tuple[CardView, ...]:
    """Return the cards with their tenants, vGPUs and MIG devices, in the node's order."""
    cards = {card.uuid: card for card in map(card_of, list_in(observed, "gpus"))}
    for host in list_in(observed, "vgpu_hosts"):
        card = card_with(cards, host)
        vgpus = tuple(map(vgpu_of, list_in(host, "instances")))
        cards[card.uuid] = replace(card, vgpu_host=vgpu_host_of(host), vgpus=vgpus)
    for gpu in list_in(observed, "mig_gpus"):
        card = card_with(cards, gpu)
        migs = tuple(map(mig_of, list_in(gpu, "instances")))
        cards[card.uuid] = replace(card, mig_mode=gpu.get("is_enabled") is True, migs=migs)
    tenants: dict[str, list[TenantView]] = {}
    for client in list_in(observed, "clients"):
        tenants.setdefault(text_in(client, "gpu_uuid"), []).append(tenant_of(client))
    return in_order(placed(cards.values(), tenants))


def placed(cards: Iterable[CardView], tenants: Mapping[str, Sequence[TenantView]]) -> list[CardView]:
    """Return the cards with tenants on them or on their MIG devices, by UUID.

    A tenant may be known before its card has answered. The card then has no other data.
    """
    found = [card.with_tenants(lambda uuid, _: tuple(tenants.get(uuid, ()))) for card in cards]
    known = {uuid for card in found for uuid, _ in card.on_parts()}
    return [*found, *(CardView(uuid, tenants=tuple(t)) for uuid, t in tenants.items() if uuid not in known)]


def card_with(cards: Mapping[str, CardView], facts: Facts) -> CardView:
    """Return the card that has MIG devices; a new card if only its MIG devices are reported."""
    uuid = text_in(facts, "gpu_uuid")
    index = whole(number_in(facts, "gpu_index"))
    return cards.get(uuid) or CardView(uuid, index, text_in(facts, "gpu_name"))


def in_order(cards: Iterable[CardView]) -> tuple[CardView, ...]:
    return tuple(sorted(cards, key=lambda card: (card.index is None, card.index or 0, card.uuid)))


def card_of(gpu: Facts) -> CardView:
    values, clocks = map_in(gpu, "values"), map_in(gpu, "clocks_hertz")
    reasons = gpu.get("throttle_reasons")
    index = number_in(gpu, "index")
    return CardView(
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
        ecc_uncorrected=whole(number_in(map_in(gpu, "ecc_errors"), "uncorrected")) or 0,
        xids=tuple(sorted((clean(x), int(n)) for x, n in map_in(gpu, "xids").items() if is_count(n))),
        last_xid_at_s=number_in(values, "gpu_last_xid_timestamp_seconds"),
        processes=whole(number_in(values, "gpu_process_count")),
        unregistered=whole(number_in(values, "gpu_unregistered_process_count")),
    )


def vgpu_host_of(host: Facts) -> VgpuHostView | None:
    """Return a description of a card's vGPU hosting; None if it hosts no vGPUs."""
    mode = HOST_MODES.get(text_in(host, "host_mode"), "")
    if not mode and not list_in(host, "instances"):
        return None
    arr = number_in(host, "arr_mode")
    policy = number_in(host, "policy")
    return VgpuHostView(
        mode=mode,
        policy=POLICIES.get(int(policy), "") if policy else "",
        arr=ARR_MODES.get(int(arr), "") if arr is not None else "",
        timeslice_s=number_in(host, "timeslice_seconds"),
    )


def vgpu_of(vgpu: Facts) -> Vgpu:
    active = vgpu.get("is_active")
    return Vgpu(
        key=number(number_in(vgpu, "vgpu_id")),
        type=text_in(vgpu, "type_name"),
        vm=text_in(vgpu, "vm_id"),
        utilization=number_in(vgpu, "utilization_ratio", 1),
        memory_bytes=number_in(vgpu, "memory_used_bytes"),
        total_bytes=number_in(vgpu, "memory_total_bytes"),
        is_active=active if isinstance(active, bool) else None,
        licence=text_in(vgpu, "license_state"),
        driver=text_in(vgpu, "guest_driver"),
    )


def mig_of(mig: Facts) -> Mig:
    def told(name: str) -> str:
        value = number_in(mig, name)
        return "" if value is None else number(value)

    return Mig(
        key=text_in(mig, "uuid") or told("index"),
        profile=text_in(mig, "profile"),
        gpu_instance=told("gpu_instance_id"),
        compute_instance=told("compute_instance_id"),
        utilization=number_in(mig, "utilization_ratio", 1),
        memory_bytes=number_in(mig, "memory_used_bytes"),
        total_bytes=number_in(mig, "memory_total_bytes"),
    )


def is_count(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def tenant_of(client: Facts) -> TenantView:
    values = map_in(client, "values")
    namespace, pod = text_in(client, "namespace"), text_in(client, "pod")
    used = [
        number_in(values, name)
        for name in ("pod_gpu_memory_used", "client_nvml_used_bytes", "client_managed_allocated_bytes")
    ]
    got = number_in(values, "client_share_achieved_ratio")
    throttled = number_in(values, "client_throttled")
    effective = number_in(values, "client_core_quota_effective_percent")
    return TenantView(
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
        gang=text_in(client, "gang"),
    )


def now_of(*, got: float | None, throttled: float | None, effective: float | None) -> Now:
    """Return a tenant's activity, derived from the figures of the last window."""
    if effective == 0:
        return "suspended"
    if got:
        return "runs"
    if throttled:
        return "waits"
    return "?" if got is None else "idle"
