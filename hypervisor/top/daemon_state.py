# SPDX-License-Identifier: Apache-2.0
"""Converts the daemon's answer to `GET /v1/state` into the model of a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hypervisor.top.assemble import Facts, cards_of, in_order, list_in, map_in, number_in, text_in, whole
from hypervisor.top.model import CardView, Now, TenantView
from hypervisor.top.processes import ProcessUse
from hypervisor.top.text import clean
from limiter.tenants import start_ticks

MIG = "MIG-"
WORKS = 0.001
"""Smallest share that counts as work. A smaller share is the end of earlier work."""


def cards_in(state: Facts, shares: Mapping[tuple[str, str], float] | None = None) -> tuple[CardView, ...]:
    """Return all cards: figures as of the last metrics snapshot, states and settings as of now.

    `shares` maps tenant and UUID to the tenant's share. A tenant without an entry has the share from the
    metrics.
    """
    cards = {card.uuid: card for card in cards_of(map_in(state, "observed"))}
    for row in list_in(state, "gpus"):
        if not text_in(row, "uuid").startswith(MIG):
            card = cards.get(text_in(row, "uuid"), plain_card(row))
            cards[card.uuid] = replace(card, error=text_in(row, "error"))
    said: dict[str, dict[str, tuple[Facts, Facts]]] = {}
    for tenant, gpu in tenants_in(state):
        said.setdefault(text_in(gpu, "uuid"), {})[text_in(tenant, "tenant")] = tenant, gpu
    had = shares or {}

    def known(uuid: str, tenants: tuple[TenantView, ...]) -> tuple[TenantView, ...]:
        got = tuple(replace(t, got=had.get((t.key, uuid), t.got)) for t in tenants)
        return with_state(got, said.get(uuid, {}))

    return in_order(card.with_tenants(known) for card in cards.values())


def read_at_ns(state: Facts) -> int | None:
    """Return the CLOCK_MONOTONIC time at which the daemon read the usage counters."""
    return whole(number_in(map_in(state, "daemon"), "at_ns"))


def spent_in(state: Facts) -> dict[tuple[str, str], int]:
    """Return tenants' GPU time by tenant and UUID."""
    counts = (
        ((text_in(tenant, "tenant"), text_in(gpu, "uuid")), whole(number_in(gpu, "spent_ns")))
        for tenant, gpu in tenants_in(state)
    )
    return {key: ns for key, ns in counts if ns is not None}


def with_state(
    tenants: tuple[TenantView, ...], said: Mapping[str, tuple[Facts, Facts]]
) -> tuple[TenantView, ...]:
    """Return the tenants of one card with their state, including those that no snapshot has observed."""
    seen = {tenant.key for tenant in tenants}
    fresh = (TenantView(n, n) for n, (_, gpu) in said.items() if n not in seen and gpu.get("present") is True)
    return tuple(now_known(tenant, said.get(tenant.key)) for tenant in (*tenants, *fresh))


def tenants_in(state: Facts) -> Iterator[tuple[Facts, Facts]]:
    """Yield tenants with each of their cards."""
    for tenant in list_in(state, "tenants"):
        for gpu in list_in(tenant, "gpus"):
            yield tenant, gpu


def plain_card(row: Facts) -> CardView:
    """Return a card that the daemon knows and no snapshot has observed yet."""
    used, total = number_in(row, "memory_used_bytes"), number_in(row, "memory_bytes")
    percent = number_in(row, "utilisation_percent", 100)
    return CardView(
        uuid=text_in(row, "uuid"),
        index=whole(number_in(row, "index")),
        name=text_in(row, "name"),
        utilization=None if percent is None else percent / 100,
        memory_bytes=used,
        total_bytes=total,
    )


def now_known(tenant: TenantView, said: tuple[Facts, Facts] | None) -> TenantView:
    """Return a tenant with its state from the daemon. `said`: the daemon's data. None if the tenant limits
    itself.
    """
    if said is None:
        return tenant
    of, gpu = said
    workers = list_in(of, "workers")
    used = number_in(gpu, "memory_used_bytes")
    quota = number_in(gpu, "memory_limit_bytes") if gpu.get("memory_limited") is True else None
    return replace(
        tenant,
        name=tenant.name if "/" in tenant.name else text_in(of, "pod") or tenant.name,
        now=now_of(tenant, of, gpu),
        problem=text_in(of, "problem"),
        limit_percent=number_in(gpu, "compute_limit_percent"),
        request_percent=number_in(gpu, "compute_request_percent"),
        weight=number_in(gpu, "weight"),
        priority=text_in(gpu, "priority"),
        memory_bytes=tenant.memory_bytes if used is None else used,
        quota_bytes=quota,
        source=text_in(of, "source") or tenant.source,
        processes=len([w for w in workers if w.get("view") is not True]),
    )


def now_of(tenant: TenantView, of: Facts, gpu: Facts) -> Now:
    """Return a tenant's activity. It runs if it used the card in the last window or has work on it now."""
    if of.get("suspended") is True:
        return "suspended"
    if (tenant.got or 0) > WORKS or gpu.get("turn") is True or number_in(gpu, "outstanding_ns"):
        return "runs"
    if number_in(gpu, "memory_waiting"):
        return "waits mem"
    if number_in(gpu, "waiting"):
        return "waits"
    return "idle" if list_in(of, "workers") else "no procs"


def held_in(state: Facts) -> Iterator[ProcessUse]:
    """Yield the processes on cards, from the usage segments and from NVML."""
    indexes = {text_in(row, "uuid"): whole(number_in(row, "index")) for row in list_in(state, "gpus")}
    owners: dict[int, str] = {}
    for tenant in list_in(state, "tenants"):
        for worker in list_in(tenant, "workers"):
            pid = whole(number_in(worker, "host_pid")) or 0
            owners[pid] = shown_name(tenant)
            for gpu in list_in(worker, "gpus"):
                uuid = text_in(gpu, "uuid")
                yield ProcessUse(
                    pid=pid,
                    card=uuid,
                    card_index=indexes.get(uuid),
                    tenant=owners[pid],
                    name=text_in(worker, "name"),
                    memory_bytes=number_in(gpu, "memory_used_bytes"),
                    spent_ns=whole(number_in(gpu, "spent_ns")),
                )
    rows = [
        (whole(number_in(r, "host_pid")) or 0, text_in(r, "uuid"), r) for r in list_in(state, "processes")
    ]
    on_parts = {(pid, indexes.get(uuid)) for pid, uuid, _ in rows if uuid.startswith(MIG)}
    for pid, uuid, row in rows:
        if not uuid.startswith(MIG) and (pid, indexes.get(uuid)) in on_parts:
            continue  # NVML lists the process twice: with its MIG device and with the card
        yield ProcessUse(
            pid=pid,
            card=uuid,
            card_index=indexes.get(uuid),
            tenant=owners.get(pid, ""),
            memory_bytes=number_in(row, "memory_bytes"),
        )


def shown_name(tenant: Facts) -> str:
    return text_in(tenant, "pod") or text_in(tenant, "tenant")


def problems_in(state: Facts) -> tuple[str, ...]:
    """Return the daemon's failures and the warnings for its operators."""
    said = map_in(state, "daemon")
    reasons, warnings = said.get("not_ready"), said.get("warnings")
    return (
        *(f"daemon not ready: {clean(one, 200)}" for one in (reasons if isinstance(reasons, list) else ())),
        *(f"daemon: {clean(one, 200)}" for one in (warnings if isinstance(warnings, list) else ())),
    )


def is_in_sight(state: Facts) -> bool:
    """True if the daemon's pids are valid here: both programs run in one pid namespace."""
    daemon = map_in(state, "daemon")
    pid = whole(number_in(daemon, "pid"))
    return bool(pid) and start_ticks(pid or 0) == whole(number_in(daemon, "start_ticks"))


def may_change(state: Mapping[str, Any]) -> bool:
    return map_in(state, "daemon").get("may_change") is True
