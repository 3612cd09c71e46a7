# SPDX-License-Identifier: Apache-2.0
"""Converts gangs to JSON data for `GET /v1/state`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hypervisor.model import GpuUuid
from hypervisor.node.gangs import gang_in_force, gang_of
from hypervisor.node.registry import Tenant
from limiter.segment import Usage


def gang_data(tenant: Tenant, usage: Usage | None, gpus: Iterable[GpuUuid]) -> dict[str, Any]:
    """Return a tenant's gang by its quota, and the GPUs on which its processes wait for each other."""
    gang = gang_of(tenant)
    waits = {device.uuid for device in usage.gang_devices} if usage is not None else set()
    waits_on = [gpu for gpu in gpus if gpu.partition("-")[2] in waits]
    return {
        "id": gang_in_force(gang, tenant.name, len(waits_on)) or None,
        "mode": gang.mode.name.lower(),
        "source": tenant.effective.gang_source,
        "waits_on": waits_on,
        "released": usage.gang.released if usage is not None else None,
    }


def gangs_data(tenants: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the gangs of tenants, which are as `tenant_data` returns them."""
    members: dict[str, list[Mapping[str, Any]]] = {}
    for tenant in tenants:
        if tenant["gang"]["id"] is not None:
            members.setdefault(tenant["gang"]["id"], []).append(tenant)
    return [
        {
            "id": gang,
            "mode": here[0]["gang"]["mode"],
            "members": [tenant["tenant"] for tenant in here],
            "gpus": sorted({gpu["uuid"] for tenant in here for gpu in gpus_of(tenant)}),
            "turn": any(gpu.get("turn") for tenant in here for gpu in gpus_of(tenant)),
        }
        for gang, here in members.items()
    ]


def gpus_of(tenant: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the GPUs of a member of a gang: where it waits for others, or if it is named, those it uses."""
    gang = tenant["gang"]
    return [
        gpu
        for gpu in tenant["gpus"]
        if (is_used(gpu) if gang["mode"] == "named" else gpu["uuid"] in gang["waits_on"])
    ]


def is_used(gpu: Mapping[str, Any]) -> bool:
    """Return True if a tenant holds memory on a GPU or has used its time."""
    return bool(gpu.get("memory_used_bytes") or gpu.get("spent_ns"))
