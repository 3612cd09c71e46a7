# SPDX-License-Identifier: Apache-2.0
"""Serves values under the names of other exporters too, for existing dashboards. Off by default.

One table defines the names. The labels are gpulimit's, which are a superset of the others'; missing labels of
a card are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hypervisor.exporter.labels import Labels
from hypervisor.exporter.samples import Family
from hypervisor.metrics.catalogue import CATALOGUE
from hypervisor.scheduler.statistics import Histogram

BRACELESS = "all_smi_"
PERCENT = 100.0
MIB = 1 / (1 << 20)


@dataclass(frozen=True, slots=True)
class Alias:
    """`name` is `source`, a name of the catalogue, times `scale`."""

    name: str
    source: str
    scale: float = 1.0
    help: str = ""
    names_card: bool = False
    """True to add the card's name and the node as labels `gpu` and `instance`."""
    label: tuple[str, str] | None = None
    """Label of the only sample to serve; the label itself is dropped."""


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
        Alias("all_smi_gpu_info", "gpu_info", names_card=True),
        Alias(
            "all_smi_gpu_utilization",
            "gpu_utilization_ratio",
            PERCENT,
            "Utilisation in percent.",
            names_card=True,
        ),
        Alias("all_smi_gpu_memory_used_bytes", "gpu_memory_used_bytes", names_card=True),
        Alias("all_smi_gpu_memory_total_bytes", "gpu_memory_total_bytes", names_card=True),
        Alias("all_smi_gpu_temperature_celsius", "gpu_temperature_celsius", names_card=True),
        Alias("all_smi_gpu_power_consumption_watts", "gpu_power_watts", names_card=True),
        Alias(
            "all_smi_gpu_frequency_mhz",
            "gpu_clock_hertz",
            1e-6,
            "Clock in MHz.",
            names_card=True,
            label=("domain", "graphics"),
        ),
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
        Alias(
            "all_smi_mig_instance_utilization_memory",
            "mig_instance_memory_utilization_ratio",
            PERCENT,
            "Memory busy, percent.",
        ),
        Alias("all_smi_mig_instance_memory_used_bytes", "mig_instance_memory_used_bytes"),
        Alias("all_smi_mig_instance_memory_total_bytes", "mig_instance_memory_total_bytes"),
    ),
}


def aliases_of(families: Iterable[Family], exporters: Iterable[str], *, node: str = "") -> Iterator[Family]:
    """Yield the families under the names of other exporters; `node` is this node's name."""
    known = {family.name: family for family in families}
    infos = known.get(CATALOGUE["gpu_info"].full_name)
    cards = [dict(labels.pairs) for labels, _ in infos.rows] if infos is not None else []
    names = {card["gpu_uuid"]: card.get("gpu_name", "") for card in cards}
    for exporter in exporters:
        for alias in ALIASES[exporter]:
            family = known.get(CATALOGUE[alias.source].full_name)
            if family is not None:
                yield renamed(family, alias, names, node)


def renamed(family: Family, alias: Alias, names: Mapping[str, str], node: str) -> Family:
    """Return a family under another name; `names` are those of cards by UUID."""
    rows = family.rows
    if alias.label is not None:
        rows = [
            (without(labels, alias.label), value) for labels, value in rows if alias.label in labels.pairs
        ]
    if alias.names_card:
        rows = [(with_card(labels, names, node), value) for labels, value in rows]
    if alias.name.startswith(BRACELESS):
        rows = [(without_braces(labels), value) for labels, value in rows]
    scaled = [
        (
            labels,
            value if isinstance(value, Histogram) or alias.scale == 1.0 else round(value * alias.scale, 6),
        )
        for labels, value in rows
    ]
    return Family(alias.name, family.kind, alias.help or family.help, scaled)


def without(labels: Labels, label: tuple[str, str]) -> Labels:
    return Labels(pair for pair in labels.pairs if pair != label)


def with_card(labels: Labels, names: Mapping[str, str], node: str) -> Labels:
    card = names.get(dict(labels.pairs).get("gpu_uuid", ""), "")
    return Labels([*labels.pairs, ("gpu", card), ("instance", node)])


def without_braces(labels: Labels) -> Labels:
    """Return labels without braces, for readers that take the first "}" for the end of all labels."""
    if "}" not in labels.text:
        return labels
    return Labels((name, value.replace("}", ")")) for name, value in labels.pairs)
