# SPDX-License-Identifier: Apache-2.0
"""Values of a card with NVIDIA vGPUs, and the tables from their fields to metrics. Pure.

The exporter writes these values, and `limiter.partition_metrics` reads them back. Both use the tables here,
so that they always have the same fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HostMode = Literal["non_sriov", "sriov", "disabled"]
HOST_MODES: dict[HostMode, int] = {"non_sriov": 0, "sriov": 1, "disabled": 2}
"""The only table of these numbers; 2 also means "unknown"."""
POLICIES = {0: "unknown", 1: "best effort", 2: "equal share", 3: "fixed share"}
"""NVML's numbers of scheduler policies."""
ARR_MODES = {0: "default", 1: "off", 2: "on"}
"""NVML's numbers for adaptive round robin."""
LICENSE_STATES = {
    0: "unknown",
    1: "uninitialized",
    2: "unlicensed_unrestricted",
    3: "unlicensed_restricted",
    4: "unlicensed",
    5: "licensed",
}


@dataclass(frozen=True, slots=True)
class VgpuInstance:
    """One vGPU. None or "" if not known."""

    vgpu_id: int
    """NVML's number of the vGPU; unique on the host while it lives."""
    uuid: str = ""
    type_name: str = ""
    vm_id: str = ""
    """The virtual machine: its UUID, or the hypervisor's number."""
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    """Activity of the memory controller, not how full it is."""
    encoder_utilization_ratio: float | None = None
    decoder_utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    is_active: bool | None = None
    """True if the vGPU is busy."""
    license_state: str = ""
    guest_driver: str = ""


@dataclass(frozen=True, slots=True)
class VgpuHost:
    """One card of a vGPU host. None or "" if not known."""

    gpu_uuid: str
    gpu_index: int = 0
    gpu_name: str = ""
    instance: str = ""
    host: str = ""
    """The node. `instance` has the same value, for all-smi's dashboards."""
    host_mode: HostMode = "disabled"
    arr_mode: int | None = None
    is_arr_supported: bool | None = None
    policy: int | None = None
    timeslice_seconds: float | None = None
    overruns: int | None = None
    """Counted overruns of time slices; only grows while the daemon's reader lives."""
    instances: tuple[VgpuInstance, ...] = ()


HOST_FAMILIES = {
    "arr_mode": "vgpu_scheduler_state",
    "policy": "vgpu_scheduler_policy",
    "timeslice_seconds": "vgpu_scheduler_timeslice_seconds",
    "overruns": "vgpu_scheduler_overruns_total",
}
"""Field of VgpuHost -> metric, without prefix. `host_mode` is in vgpu_host_mode, as value and label."""
INSTANCE_FAMILIES = {
    "utilization_ratio": "vgpu_utilization_ratio",
    "memory_utilization_ratio": "vgpu_memory_utilization_ratio",
    "encoder_utilization_ratio": "vgpu_encoder_utilization_ratio",
    "decoder_utilization_ratio": "vgpu_decoder_utilization_ratio",
    "memory_used_bytes": "vgpu_memory_used_bytes",
    "memory_total_bytes": "vgpu_memory_total_bytes",
    "is_active": "vgpu_active",
}
"""Field of VgpuInstance -> metric."""
INSTANCE_LABELS = {
    "vgpu_id": "vgpu_id",
    "uuid": "vgpu_uuid",
    "type_name": "vgpu_type",
    "vm_id": "vgpu_vm_id",
}
"""Field of VgpuInstance -> label of all its metrics."""
INSTANCE_INFOS = {
    "license_state": ("vgpu_license_info", "state"),
    "guest_driver": ("vgpu_guest_driver_info", "driver_version"),
}
"""Field of VgpuInstance -> (metric that is always 1, its label)."""
