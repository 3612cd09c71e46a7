# SPDX-License-Identifier: Apache-2.0
"""Values of a card with MIG, and the tables from their fields to metrics. Pure.

See limiter.vgpu for why the tables are here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG device: a compute instance in a GPU instance. None or "" if not known."""

    index: int
    """NVML's number of the MIG device on its card; numbers may have gaps."""
    uuid: str = ""
    """"MIG-…", the name for quotas and CUDA_VISIBLE_DEVICES."""
    profile: str = ""
    """"1g.10gb"."""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_ratio: float | None = None
    """Activity of its GPU instance, which other compute instances may share."""
    memory_utilization_ratio: float | None = None
    """Activity of the memory controller, not how full it is."""
    memory_reserved_bytes: int | None = None
    """Sum of its tenants' memory quotas."""
    compute_requested_ratio: float | None = None
    """Sum of its tenants' requests."""


@dataclass(frozen=True, slots=True)
class MigGpu:
    """One card that supports MIG."""

    gpu_uuid: str
    gpu_index: int = 0
    gpu_name: str = ""
    instance: str = ""
    host: str = ""
    is_enabled: bool = False
    instances: tuple[MigInstance, ...] = ()


INSTANCE_FAMILIES = {
    "memory_used_bytes": "mig_instance_memory_used_bytes",
    "memory_total_bytes": "mig_instance_memory_total_bytes",
    "utilization_ratio": "mig_instance_utilization_ratio",
    "memory_utilization_ratio": "mig_instance_memory_utilization_ratio",
    "memory_reserved_bytes": "mig_instance_memory_reserved_bytes",
    "compute_requested_ratio": "mig_instance_compute_requested_ratio",
}
"""Field of MigInstance -> metric, without prefix."""
INSTANCE_LABELS = {
    "index": "mig_instance",
    "uuid": "mig_uuid",
    "profile": "mig_profile",
    "gpu_instance_id": "gpu_instance_id",
    "compute_instance_id": "compute_instance_id",
}
"""Field of MigInstance -> label of all its metrics."""
INFO = "mig_instance_info"
"""Constant 1 for each MIG device, so that a MIG device without other values appears too."""
