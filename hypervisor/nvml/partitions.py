# SPDX-License-Identifier: Apache-2.0
"""Checks NVML's values about vGPUs and MIG devices. Pure.

As for a card's readings, a value that NVML does not report, or reports out of range, is None. The other
fields are unaffected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hypervisor.nvml.readings import MAX_MEMORY_BYTES, within
from limiter.mig import MigGpu, MigInstance
from limiter.vgpu import (
    ARR_MODES,
    HOST_MODES,
    LICENSE_STATES,
    POLICIES,
    HostMode,
    VgpuHost,
    VgpuInstance,
)

MAX_VGPUS = 256
MAX_MIG = 64
MAX_TEXT_CHARS = 96
MAX_ID = (1 << 32) - 1
MAX_SLICE_NS = 10**9
MAX_COUNT = 2.0**63
PERCENT = 0.01
MODES: dict[int | None, HostMode] = {number: mode for mode, number in HOST_MODES.items()}
ACTIVITY = {
    "utilization_ratio": "sm",
    "memory_utilization_ratio": "memory",
    "encoder_utilization_ratio": "encoder",
    "decoder_utilization_ratio": "decoder",
}


def whole(value: Any, low: int, high: float) -> int | None:
    """Return a value if it is an integer within the bounds, else None."""
    known = within(value, low, high)
    return int(known) if known is not None and known == int(known) else None


def text(value: Any) -> str:
    return value[:MAX_TEXT_CHARS] if isinstance(value, str) else ""


def rows_in(value: Any, most: int) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a list, at most so many."""
    if isinstance(value, list):
        yield from (row for row in value[:most] if isinstance(row, dict))


def vgpu_host_of(row: Any, *, uuid: str, index: int, name: str) -> VgpuHost | None:
    """Return a card of a vGPU host from the probe's row; None if the card is not one."""
    if not isinstance(row, dict):
        return None
    supported = row.get("arr_supported")
    policy, arr = whole(row.get("policy"), 0, max(POLICIES)), whole(row.get("arr"), 0, max(ARR_MODES))
    slice_ns = whole(row.get("timeslice_ns"), 1, MAX_SLICE_NS)
    instances: dict[int, VgpuInstance] = {}
    for told in rows_in(row.get("instances"), MAX_VGPUS):
        instance = vgpu_of(told)
        if instance is not None:
            instances[instance.vgpu_id] = instance
    return VgpuHost(
        gpu_uuid=uuid,
        gpu_index=index,
        gpu_name=name,
        host_mode=MODES.get(whole(row.get("host_mode"), 0, 2), "disabled"),
        arr_mode=arr,
        is_arr_supported=supported if isinstance(supported, bool) else None,
        policy=policy,
        timeslice_seconds=None if slice_ns is None else slice_ns / 1e9,
        overruns=whole(row.get("overruns"), 0, MAX_COUNT),
        instances=tuple(instances[number] for number in sorted(instances)),
    )


def vgpu_of(row: Mapping[str, Any]) -> VgpuInstance | None:
    """Return a vGPU; None if its row has no number."""
    number = whole(row.get("id"), 0, MAX_ID)
    if number is None:
        return None
    told = row.get("activity")
    activity = told if isinstance(told, dict) else {}
    total = whole(row.get("memory_bytes"), 1, MAX_MEMORY_BYTES)
    is_active, state = row.get("active"), row.get("license")
    ratios = {field: within(activity.get(key), 0, 1, PERCENT) for field, key in ACTIVITY.items()}
    return VgpuInstance(
        vgpu_id=number,
        uuid=text(row.get("uuid")),
        type_name=text(row.get("type")),
        vm_id=text(row.get("vm_id")),
        **ratios,
        memory_used_bytes=whole(row.get("memory_used_bytes"), 0, total or MAX_MEMORY_BYTES),
        memory_total_bytes=total,
        is_active=is_active if isinstance(is_active, bool) else None,
        license_state=LICENSE_STATES.get(state, "") if isinstance(state, int) else "",
        guest_driver=text(row.get("driver")),
    )


def mig_gpu_of(row: Any, *, uuid: str, index: int, name: str) -> MigGpu | None:
    """Return a card's MIG state from the probe's row; None if the card does not support MIG."""
    if not isinstance(row, dict):
        return None
    instances: dict[int, MigInstance] = {}
    for told in rows_in(row.get("instances"), MAX_MIG):
        instance = mig_of(told)
        if instance is not None:
            instances[instance.index] = instance
    return MigGpu(
        gpu_uuid=uuid,
        gpu_index=index,
        gpu_name=name,
        is_enabled=row.get("enabled") is True,
        instances=tuple(instances[number] for number in sorted(instances)),
    )


def mig_of(row: Mapping[str, Any]) -> MigInstance | None:
    """Return a MIG device; None if its row has no number."""
    index = whole(row.get("index"), 0, MAX_MIG)
    if index is None:
        return None
    total = whole(row.get("memory_bytes"), 1, MAX_MEMORY_BYTES)
    return MigInstance(
        index=index,
        uuid=text(row.get("uuid")),
        profile=text(row.get("profile")),
        gpu_instance_id=whole(row.get("gpu_instance"), 0, MAX_MIG),
        compute_instance_id=whole(row.get("compute_instance"), 0, MAX_MIG),
        memory_used_bytes=whole(row.get("memory_used_bytes"), 0, total or MAX_MEMORY_BYTES),
        memory_total_bytes=total,
        utilization_ratio=within(row.get("busy"), 0, 1, PERCENT),
        memory_utilization_ratio=within(row.get("memory_busy"), 0, 1, PERCENT),
    )
