# SPDX-License-Identifier: Apache-2.0
"""Converts the node's state to JSON data for `GET /v1/state` and its clients. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping
from typing import Any

from hypervisor.api.gangs import gang_data
from hypervisor.dispatcher.run_queue import TenantShare
from hypervisor.metrics.snapshot import ClientView, GpuView, Snapshot
from hypervisor.model import DeviceQuota, EffectiveQuota, GpuSample, GpuUuid, TenantName, Worker
from hypervisor.node.events import Event
from hypervisor.node.registry import Tenant
from limiter.segment import Process, Usage


def quota_data(effective: EffectiveQuota) -> dict[str, Any]:
    """Return a quota in the form in which it is set."""
    said = {k.removeprefix("GPULIMIT_").lower(): v for k, v in effective.quota.environ().items()}
    return {"source": effective.source, "quota": said}


def tenant_data(
    tenant: Tenant,
    quotas: Mapping[GpuUuid, DeviceQuota],
    usage: Usage | None,
    shares: Mapping[GpuUuid, Mapping[TenantName, TenantShare]],
) -> dict[str, Any]:
    """Return a tenant; `usage` is None if its usage segment cannot be read."""
    processes = {p.holder_pid: p for p in (usage.processes if usage is not None else ()) if p.is_alive}
    return {
        "tenant": tenant.name,
        "uid": tenant.uid,
        "pod": tenant.pod,
        "pod_uid": tenant.pod_uid,
        **quota_data(tenant.effective),
        "suspended": tenant.is_suspended,
        "gang": gang_data(tenant, usage, quotas),
        "gpus": [
            gpu_of_tenant(gpu, quota, usage, shares.get(gpu, {}).get(tenant.name))
            for gpu, quota in quotas.items()
        ],
        "workers": [
            worker_data(worker, processes.get(worker.key.host_pid), usage, quotas)
            for worker in tenant.workers.values()
        ],
        "problem": "" if usage is not None else "its books cannot be read",
    }


def worker_data(
    worker: Worker, process: Process | None, usage: Usage | None, gpus: Iterable[GpuUuid]
) -> dict[str, Any]:
    """Return a process with its usage of each GPU, from its tenant's usage segment."""
    names = {gpu.partition("-")[2]: gpu for gpu in gpus}
    devices = usage.devices if usage is not None else ()
    uuids = {d.entry: names[d.uuid] for d in devices if d.uuid in names}
    return {
        "id": worker.id,
        "pid": worker.pid,
        "host_pid": worker.key.host_pid,
        "name": worker.name,
        "view": worker.is_nvml_only,
        "gpus": [
            {"uuid": uuids[a.entry], "memory_used_bytes": a.used_bytes, "spent_ns": a.spent_ns}
            for a in (process.accounts if process is not None else ())
            if a.entry in uuids
        ],
    }


def gpu_of_tenant(
    gpu: GpuUuid, quota: DeviceQuota, usage: Usage | None, share: TenantShare | None
) -> dict[str, Any]:
    """Return a tenant on one GPU."""
    devices = usage.devices if usage is not None else ()
    device = next((d for d in devices if d.uuid == gpu.partition("-")[2]), None)
    data: dict[str, Any] = {
        "uuid": gpu,
        "memory_limit_bytes": quota.memory_bytes,
        "memory_limited": quota.is_memory_limited,
        "compute_limit_percent": quota.compute_percent,
        "compute_request_percent": quota.request_percent,
        "weight": quota.weight,
        "priority": quota.priority,
        "memory_wait_ns": quota.memory_wait_ns,
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
            "memory_waiting": memory_waiting(usage, device.entry),
            "memory_waits": device.memory_waits,
            "memory_waited_ns": device.memory_waited_ns,
        }
    if share is not None:
        data |= {
            "granted_ns": share.grant.granted_ns,
            "outstanding_ns": share.seen.outstanding_ns,
            "waiting": share.seen.waiting,
            "shared": share.grant.is_shared,
            "turn": share.has_turn,
        }
    if share is not None and share.status is not None:
        data |= {
            "takes_turns": share.status.takes_turns,
            "part": round(share.status.share, 4),
            "rate": round(share.status.rate, 4),
        }
    return data


def memory_waiting(usage: Usage | None, entry: int) -> int:
    """Return the number of a tenant's processes with an allocation that waits for memory."""
    processes = usage.processes if usage is not None else ()
    return sum(
        any(a.entry == entry and a.memory_waiting for a in process.accounts)
        for process in processes
        if process.is_alive
    )


def gpu_data(sample: GpuSample, tenants: int) -> dict[str, Any]:
    """Return a GPU."""
    return {
        "uuid": sample.gpu.uuid,
        "index": sample.gpu.index,
        "label": sample.gpu.label,
        "card": sample.gpu.mig.card if sample.gpu.mig is not None else None,
        "profile": sample.gpu.mig.profile if sample.gpu.mig is not None else None,
        "name": sample.gpu.name,
        "memory_bytes": sample.gpu.memory_bytes,
        "memory_source": sample.memory_source,
        "memory_used_bytes": sample.memory_used_bytes,
        "utilisation_percent": sample.utilisation_percent,
        "tenants": tenants,
        "healthy": not sample.error,
        "error": sample.error,
    }


def processes_data(samples: Iterable[GpuSample]) -> list[dict[str, Any]]:
    """Return the processes that NVML lists on each GPU; bytes are None if NVML does not report them."""
    return [
        {"uuid": sample.gpu.uuid, "host_pid": pid, "memory_bytes": used}
        for sample in samples
        # A card in MIG mode lists the processes of its MIG devices a second time.
        if not sample.error and not (sample.mig is not None and sample.mig.is_enabled)
        for pid, used in (sample.readings.processes or {}).items()
    ]


def event_data(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(event) for event in events]


def observed_data(seen: Snapshot, tenants: Container[str] | None) -> dict[str, Any]:
    """Return the values behind the metrics, by the catalogue's names; `tenants` is None for all tenants.

    A value that is not known is left out. A caller that may see only some tenants gets no virtual machines,
    and only the MIG devices of these tenants.
    """
    clients = [c for c in seen.clients if tenants is None or c.who.tenant in tenants]
    data: dict[str, Any] = {
        "gpus": [observed_gpu(gpu) for gpu in seen.gpus],
        "clients": [observed_client(client) for client in clients],
        "mig_gpus": [dataclasses.asdict(gpu) for gpu in seen.mig_gpus],
    }
    if tenants is None:
        data["schedulers"] = [{"uuid": s.gpu_uuid, "values": known(s.values)} for s in seen.schedulers]
        data["vgpu_hosts"] = [dataclasses.asdict(host) for host in seen.vgpu_hosts]
        return data
    own = {client.gpu_uuid for client in clients}
    for gpu in data["mig_gpus"]:
        gpu["instances"] = [device for device in gpu["instances"] if device["uuid"] in own]
    return data


def observed_gpu(gpu: GpuView) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "driver_version": gpu.driver_version,
        "lost": gpu.is_lost,
        "values": known(gpu.values),
        "clocks_hertz": dict(gpu.clocks_hertz),
        "ecc_errors": dict(gpu.ecc_errors),
        "throttle_reasons": [reason for reason, holds in gpu.throttle_reasons.items() if holds],
        "xids": {str(xid): count for xid, count in gpu.xids.items()},
    }


def observed_client(client: ClientView) -> dict[str, Any]:
    return {
        **dataclasses.asdict(client.who),
        "gpu_uuid": client.gpu_uuid,
        "gpu_index": client.gpu_index,
        "state": client.state,
        "source": client.source,
        "values": known({**client.values, **client.pod}),
        "denied": dict(client.denied),
        "gang": client.gang.id,
    }


def known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
