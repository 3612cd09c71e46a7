# SPDX-License-Identifier: Apache-2.0
"""Checks NVML's readings of a card. Pure.

Drivers report an unknown value as the type's largest number, and sometimes return impossible values. Both
become None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypervisor.model import Readings
from limiter.units import PERCENT

MAX_WATTS = 5_000
MAX_CELSIUS = 200
MAX_MHZ = 20_000
MAX_JOULES = 1e12
MAX_MEMORY_BYTES = 1 << 48
MAX_ERRORS = 1 << 53

THROTTLE_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}
ECC_KINDS = ("corrected", "uncorrected")
DOMAINS = ("graphics", "sm", "memory", "video")


def within(value: Any, low: float, high: float, scale: float = 1.0) -> float | None:
    """Return a value times `scale` if it is a number and the result is within the bounds, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    scaled = value * scale
    return scaled if low <= scaled <= high else None


def readings_of(row: Mapping[str, Any]) -> Readings:
    """Return the readings in a row of the probe. A bad field is None; the others are unaffected."""
    total = within(row.get("memory_bytes"), 1, MAX_MEMORY_BYTES)
    most = total or MAX_MEMORY_BYTES
    return Readings(
        memory_total_bytes=total,
        memory_used_bytes=within(row.get("memory_used_bytes"), 0, most),
        memory_free_bytes=within(row.get("memory_free_bytes"), 0, most),
        utilization_ratio=within(row.get("utilisation_percent"), 0, 1, 1 / PERCENT),
        memory_utilization_ratio=within(row.get("memory_utilisation_percent"), 0, 1, 1 / PERCENT),
        power_watts=within(row.get("power_mw"), 0, MAX_WATTS, 1e-3),
        energy_joules=within(row.get("energy_mj"), 0, MAX_JOULES, 1e-3),
        temperature_celsius=within(row.get("temperature_c"), -MAX_CELSIUS, MAX_CELSIUS),
        encoder_utilization_ratio=within(row.get("encoder_percent"), 0, 1, 1 / PERCENT),
        decoder_utilization_ratio=within(row.get("decoder_percent"), 0, 1, 1 / PERCENT),
        ecc_errors=errors_of(row.get("ecc_errors")),
        clocks_hertz=clocks_of(row.get("clocks_mhz")),
        throttle_reasons=reasons_of(row.get("throttle")),
        processes=processes_of(row.get("pids"), most),
        driver_version=row.get("driver_version") or None,
    )


def clocks_of(values: Any) -> dict[str, float]:
    if not isinstance(values, list):
        return {}
    clocks = {domain: within(v, 0, MAX_MHZ) for domain, v in zip(DOMAINS, values, strict=False)}
    return {domain: mhz * 1e6 for domain, mhz in clocks.items() if mhz is not None}


def errors_of(values: Any) -> dict[str, int]:
    if not isinstance(values, list):
        return {}
    counts = {kind: within(v, 0, MAX_ERRORS) for kind, v in zip(ECC_KINDS, values, strict=False)}
    return {kind: int(count) for kind, count in counts.items() if count is not None}


def reasons_of(bits: Any) -> dict[str, int]:
    if not isinstance(bits, int) or not 0 <= bits < 1 << 32:
        return {}
    return {name: int(bool(bits & bit)) for name, bit in THROTTLE_REASONS.items()}


def processes_of(pairs: Any, most: float) -> dict[int, int | None] | None:
    """Return bytes by pid; rows of one process are summed."""
    if not isinstance(pairs, list):
        return None
    found: dict[int, int | None] = {}
    for pid, used in pairs:
        size = within(used, 0, most)
        before = found.get(pid)
        found[pid] = before if size is None else int(size) + (before or 0)
    return found
