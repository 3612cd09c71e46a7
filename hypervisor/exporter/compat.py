# SPDX-License-Identifier: Apache-2.0
"""The same values under the names that other exporters' users have on their dashboards. Off unless asked for.

One table. Labels are ours, which are a superset of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hypervisor.core.turns import Histogram
from hypervisor.exporter.sheet import Family
from hypervisor.metrics import CATALOGUE

PERCENT = 100.0
MIB = 1 / (1 << 20)


@dataclass(frozen=True, slots=True)
class Alias:
    """`name` is `source`, a name of the catalogue, times `scale`."""

    name: str
    source: str
    scale: float = 1.0
    help: str = ""


NVSHARE = (
    "gpu_info",
    "gpu_memory_total_bytes",
    "gpu_memory_used_bytes",
    "gpu_memory_free_bytes",
    "gpu_utilization_ratio",
    "gpu_memory_utilization_ratio",
    "gpu_process_count",
    "client_info",
    "client_managed_allocated_bytes",
    "client_managed_allocated_peak_bytes",
    "client_nvml_used_bytes",
    "client_memory_overhead_baseline_bytes",
    "client_memory_need_estimated_bytes",
    "client_memory_need_upper_bytes",
    "client_memory_quota_bytes",
    "client_memory_quota_source_info",
    "client_memory_quota_exceeded",
    "client_core_quota_config_percent",
    "client_core_quota_effective_percent",
    "client_core_window_usage_ms",
    "client_core_window_limit_ms",
    "client_core_usage_ratio",
    "client_throttled",
    "client_pending_drop",
    "client_quota_debt_ms",
    "scheduler_running_clients",
    "scheduler_request_queue_clients",
    "scheduler_wait_queue_clients",
    "scheduler_running_memory_bytes",
    "scheduler_peak_running_memory_bytes",
    "scheduler_memory_safe_limit_bytes",
    "scheduler_memory_overloaded",
    "scheduler_messages_total",
    "scheduler_drop_lock_total",
    "scheduler_client_disconnect_total",
    "scheduler_wait_for_mem_total",
    "scheduler_mem_available_total",
    "nvml_up",
)

ALIASES: dict[str, tuple[Alias, ...]] = {
    "nvshare": (
        *(Alias(f"nvshare_{name}", name) for name in NVSHARE),
        Alias("nvshare_gpu_sampler_up", "nvml_up"),
    ),
    "k8s-vgpu-monitor": (
        Alias("pod_gpu_sm_util", "pod_gpu_sm_util"),
        Alias("pod_gpu_memory_used", "pod_gpu_memory_used", MIB, "Memory in use, in MiB."),
        Alias("pod_total_gpu_memory", "pod_total_gpu_memory", MIB, "Memory quota, in MiB."),
    ),
    "all-smi": (
        Alias("all_smi_vgpu_host_mode", "vgpu_host_mode"),
        Alias("all_smi_vgpu_scheduler_state", "vgpu_scheduler_state"),
        Alias("all_smi_vgpu_scheduler_policy", "vgpu_scheduler_policy"),
        Alias("all_smi_vgpu_utilization", "vgpu_utilization_ratio", PERCENT, "Utilisation in percent."),
        Alias(
            "all_smi_vgpu_memory_utilization",
            "vgpu_memory_utilization_ratio",
            PERCENT,
            "Memory busy, percent.",
        ),
        Alias("all_smi_vgpu_memory_used_bytes", "vgpu_memory_used_bytes"),
        Alias("all_smi_vgpu_memory_total_bytes", "vgpu_memory_total_bytes"),
        Alias("all_smi_vgpu_active", "vgpu_active"),
        Alias("all_smi_gpu_mig_mode", "mig_mode"),
        Alias(
            "all_smi_mig_instance_utilization_gpu",
            "mig_instance_utilization_ratio",
            PERCENT,
            "Utilisation in percent.",
        ),
        Alias("all_smi_mig_instance_memory_used_bytes", "mig_instance_memory_used_bytes"),
        Alias("all_smi_mig_instance_memory_total_bytes", "mig_instance_memory_total_bytes"),
    ),
}


def aliases_of(families: Iterable[Family], exporters: Iterable[str]) -> Iterator[Family]:
    """Yield the families once more under the names of other exporters."""
    known = {family.name: family for family in families}
    for exporter in exporters:
        for alias in ALIASES[exporter]:
            family = known.get(CATALOGUE[alias.source].full_name)
            if family is not None:
                yield renamed(family, alias)


def renamed(family: Family, alias: Alias) -> Family:
    rows = [
        (labels, value if isinstance(value, Histogram) or alias.scale == 1.0 else value * alias.scale)
        for labels, value in family.rows
    ]
    return Family(alias.name, family.kind, alias.help or family.help, rows)
