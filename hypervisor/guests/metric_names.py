# SPDX-License-Identifier: Apache-2.0
"""Tables of the exporters' metric names, and the names under which their values are taken over. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1 << 20
MAX_MEMORY_BYTES = 1 << 48
MAX_COUNT = 1 << 53

BOUNDS: Mapping[str, tuple[float, float]] = {
    "utilization_percent": (0, 100),
    "memory_utilization_percent": (0, 100),
    "memory_used_bytes": (0, MAX_MEMORY_BYTES),
    "memory_total_bytes": (1, MAX_MEMORY_BYTES),
    "temperature_celsius": (-100, 200),
    "power_usage_milliwatts": (0, 5_000_000),
    "ecc_errors_single_bit_total": (0, MAX_COUNT),
    "ecc_errors_double_bit_total": (0, MAX_COUNT),
    "encoder_utilization_percent": (0, 100),
    "decoder_utilization_percent": (0, 100),
    "running_processes": (0, 1_000_000),
}
"""Names of the values that are taken over, as kubevirt_vmi_gpu_NAME, with their bounds. Sentinels for "not
known" lie outside the bounds.
"""


@dataclass(frozen=True, slots=True)
class MetricRule:
    """One family of an exporter."""

    name: str
    """Name under which the value is taken over."""
    scale: float = 1.0
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that a series must have."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One exporter. `uuid`, `index` and `title` are the labels that identify the GPU."""

    uuid: str
    index: str
    title: str
    rows: Mapping[str, tuple[MetricRule, ...]]
    about: str = ""
    """The only family with index and title, if not all families have them."""
    parts: tuple[str, ...] = ()
    """Families whose sum is the total memory, if the exporter has no total: used, free, reserved."""
    instance: str = ""
    """Label of the series that describe a part of the card; these series are left out."""
    numbers: str = ""
    """Family whose values are the indexes."""
    others: frozenset[str] = field(default_factory=frozenset)
    """Families that are read, but not as values of a GPU."""

    @property
    def names(self) -> frozenset[str]:
        more = (name for name in (self.about, self.numbers) if name)
        return frozenset((*self.rows, *self.parts, *self.others, *more))


OWN = Dialect(
    uuid="gpu_uuid",
    index="gpu_index",
    title="gpu_name",
    about="gpulimit_gpu_info",
    others=frozenset(("gpulimit_guest_agent_info", "gpulimit_guest_agent_status")),
    rows={
        "gpulimit_gpu_utilization_ratio": (MetricRule("utilization_percent", 100),),
        "gpulimit_gpu_memory_utilization_ratio": (MetricRule("memory_utilization_percent", 100),),
        "gpulimit_gpu_memory_used_bytes": (MetricRule("memory_used_bytes"),),
        "gpulimit_gpu_memory_total_bytes": (MetricRule("memory_total_bytes"),),
        "gpulimit_gpu_temperature_celsius": (MetricRule("temperature_celsius"),),
        "gpulimit_gpu_power_watts": (MetricRule("power_usage_milliwatts", 1000),),
        "gpulimit_gpu_encoder_utilization_ratio": (MetricRule("encoder_utilization_percent", 100),),
        "gpulimit_gpu_decoder_utilization_ratio": (MetricRule("decoder_utilization_percent", 100),),
        "gpulimit_gpu_process_count": (MetricRule("running_processes"),),
        "gpulimit_gpu_ecc_errors_total": (
            MetricRule("ecc_errors_single_bit_total", labels=(("kind", "corrected"),)),
            MetricRule("ecc_errors_double_bit_total", labels=(("kind", "uncorrected"),)),
        ),
    },
)

DCGM_EXPORTER = Dialect(
    uuid="UUID",
    index="gpu",
    title="modelName",
    instance="GPU_I_ID",
    parts=("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"),
    rows={
        "DCGM_FI_DEV_GPU_UTIL": (MetricRule("utilization_percent"),),
        "DCGM_FI_DEV_MEM_COPY_UTIL": (MetricRule("memory_utilization_percent"),),
        "DCGM_FI_DEV_FB_USED": (MetricRule("memory_used_bytes", MIB),),
        "DCGM_FI_DEV_FB_TOTAL": (MetricRule("memory_total_bytes", MIB),),
        "DCGM_FI_DEV_GPU_TEMP": (MetricRule("temperature_celsius"),),
        "DCGM_FI_DEV_POWER_USAGE": (MetricRule("power_usage_milliwatts", 1000),),
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": (MetricRule("ecc_errors_single_bit_total"),),
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (MetricRule("ecc_errors_double_bit_total"),),
        "DCGM_FI_DEV_ENC_UTIL": (MetricRule("encoder_utilization_percent"),),
        "DCGM_FI_DEV_DEC_UTIL": (MetricRule("decoder_utilization_percent"),),
    },
)

NVIDIA_GPU_EXPORTER = Dialect(
    uuid="uuid",
    index="index",
    title="name",
    about="nvidia_smi_gpu_info",
    numbers="nvidia_smi_index",
    rows={
        "nvidia_smi_utilization_gpu_ratio": (MetricRule("utilization_percent", 100),),
        "nvidia_smi_utilization_memory_ratio": (MetricRule("memory_utilization_percent", 100),),
        "nvidia_smi_memory_used_bytes": (MetricRule("memory_used_bytes"),),
        "nvidia_smi_memory_total_bytes": (MetricRule("memory_total_bytes"),),
        "nvidia_smi_temperature_gpu": (MetricRule("temperature_celsius"),),
        "nvidia_smi_power_draw_watts": (MetricRule("power_usage_milliwatts", 1000),),
        "nvidia_smi_ecc_errors_corrected_volatile_total": (MetricRule("ecc_errors_single_bit_total"),),
        "nvidia_smi_ecc_errors_uncorrected_volatile_total": (MetricRule("ecc_errors_double_bit_total"),),
        "nvidia_smi_utilization_encoder_ratio": (MetricRule("encoder_utilization_percent", 100),),
        "nvidia_smi_utilization_decoder_ratio": (MetricRule("decoder_utilization_percent", 100),),
        "nvidia_smi_compute_apps": (MetricRule("running_processes"),),
    },
)

DIALECTS = (OWN, DCGM_EXPORTER, NVIDIA_GPU_EXPORTER)
