# SPDX-License-Identifier: Apache-2.0
"""NVML's numbers: what cannot be true is not known."""

from __future__ import annotations

import pytest

from hypervisor.model import Readings
from hypervisor.nvml.readings import readings_of

GOOD = {
    "memory_bytes": 1000,
    "memory_used_bytes": 400,
    "memory_free_bytes": 600,
    "utilisation_percent": 50,
    "memory_utilisation_percent": 100,
    "power_mw": 70_500,
    "energy_mj": 1_500,
    "temperature_c": 40,
    "clocks_mhz": [1980, 1980, None, 1545],
    "throttle": 0x41,
    "pids": [[7, 100], [8, None]],
    "driver_version": "580",
}


def test_good_readings_are_in_base_units() -> None:
    readings = readings_of(GOOD)
    assert readings.utilization_ratio == 0.5
    assert readings.memory_utilization_ratio == 1
    assert readings.power_watts == 70.5
    assert readings.energy_joules == 1.5
    assert readings.clocks_hertz == {"graphics": 1.98e9, "sm": 1.98e9, "video": 1.545e9}
    assert {name for name, is_set in readings.throttle_reasons.items() if is_set} == {
        "gpu_idle",
        "hw_thermal",
    }
    assert readings.processes == {7: 100, 8: None}


@pytest.mark.parametrize("garbage", [(1 << 32) - 1, (1 << 64) - 1, -(1 << 31), "N/A", None, True, [], 1e300])
@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("memory_used_bytes", "memory_used_bytes"),
        ("utilisation_percent", "utilization_ratio"),
        ("memory_utilisation_percent", "memory_utilization_ratio"),
        ("power_mw", "power_watts"),
        ("temperature_c", "temperature_celsius"),
    ],
)
def test_sentinels_and_nonsense_are_not_known(key, field, garbage) -> None:
    readings = readings_of({**GOOD, key: garbage})
    assert getattr(readings, field) is None
    assert readings.energy_joules == 1.5, "the others are there"


def test_more_memory_in_use_than_there_is_is_not_known() -> None:
    assert readings_of({**GOOD, "memory_used_bytes": 1001}).memory_used_bytes is None


def test_a_process_listed_twice_counts_once() -> None:
    assert readings_of({**GOOD, "pids": [[7, 100], [7, 50], [8, 1 << 63]]}).processes == {7: 150, 8: None}


def test_nothing_said_is_nothing_known() -> None:
    assert readings_of({}) == Readings()
