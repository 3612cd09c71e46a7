# SPDX-License-Identifier: Apache-2.0
"""The node's state as data, for `GET /v1/state` and whoever shows it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from hypervisor.arbitration import Share
from hypervisor.core.events import Event
from hypervisor.core.model import DeviceQuota, GpuSample, GpuUuid, Held, TenantName
from hypervisor.core.registry import Tenant
from limiter.segment import Usage


def quota_data(held: Held) -> dict[str, Any]:
    """Return a quota in the words in which it is set."""
    said = {k.removeprefix("GPULIMIT_").lower(): v for k, v in held.quota.environ().items()}
    return {"source": held.source, "quota": said}


def tenant_data(
    tenant: Tenant,
    quotas: Mapping[GpuUuid, DeviceQuota],
    usage: Usage | None,
    shares: Mapping[GpuUuid, Mapping[TenantName, Share]],
) -> dict[str, Any]:
    """Return a tenant; `usage` None: its books cannot be read."""
    return {
        "tenant": tenant.name,
        "uid": tenant.uid,
        "pod": tenant.pod,
        "pod_uid": tenant.pod_uid,
        **quota_data(tenant.held),
        "suspended": tenant.is_suspended,
        "gpus": [
            gpu_of_tenant(gpu, quota, usage, shares.get(gpu, {}).get(tenant.name))
            for gpu, quota in quotas.items()
        ],
        "workers": [
            {"id": w.id, "pid": w.pid, "host_pid": w.key.host_pid, "name": w.name, "view": w.is_view}
            for w in tenant.workers.values()
        ],
        "problem": "" if usage is not None else "its books cannot be read",
    }


def gpu_of_tenant(
    gpu: GpuUuid, quota: DeviceQuota, usage: Usage | None, share: Share | None
) -> dict[str, Any]:
    """Return a tenant on one GPU."""
    devices = usage.devices if usage is not None else ()
    device = next((d for d in devices if f"GPU-{d.uuid}" == gpu), None)
    data: dict[str, Any] = {
        "uuid": gpu,
        "memory_limit_bytes": quota.memory_bytes,
        "memory_limited": quota.is_memory_limited,
        "compute_limit_percent": quota.compute_percent,
        "compute_request_percent": quota.request_percent,
        "weight": quota.weight,
        "priority": quota.priority,
        "present": device is not None,
    }
    if device is not None:
        data |= {
            "memory_used_bytes": device.used_bytes,
            "spent_ns": device.spent_ns,
            "throttled_ns": device.throttled_ns,
            "throttled_count": device.throttled_count,
            "refused": device.refused,
            "refused_by_card": device.refused_by_card,
        }
    if share is not None:
        data |= {
            "granted_ns": share.grant.granted_ns,
            "outstanding_ns": share.seen.outstanding_ns,
            "waiting": share.seen.waiting,
            "shared": share.grant.is_shared,
            "turn": share.has_turn,
        }
    if share is not None and share.rating is not None:
        data |= {
            "takes_turns": share.rating.takes_turns,
            "part": round(share.rating.part, 4),
            "rate": round(share.rating.rate, 4),
        }
    return data


def gpu_data(sample: GpuSample, tenants: int) -> dict[str, Any]:
    """Return a GPU."""
    return {
        "uuid": sample.gpu.uuid,
        "index": sample.gpu.index,
        "name": sample.gpu.name,
        "memory_bytes": sample.gpu.memory_bytes,
        "memory_used_bytes": sample.memory_used_bytes,
        "utilisation_percent": sample.utilisation_percent,
        "tenants": tenants,
        "healthy": not sample.error,
        "error": sample.error,
    }


def event_data(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(event) for event in events]
