# SPDX-License-Identifier: Apache-2.0
"""Every call that NVML is asked of a card fails, hangs or is not supported for one of two cards."""

from __future__ import annotations

from typing import Any

import pytest

UNKNOWN_ERROR, NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = 999, 3, 4, 15
VITAL = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID")
"""Without these a card cannot be named."""
MEMORY = "nvmlDeviceGetMemoryInfo"
FIELDS = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetMinorNumber": "minor",
    "nvmlDeviceGetUtilizationRates": "utilisation_percent",
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_mj",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetClockInfo": "clocks_mhz",
    "nvmlDeviceGetEncoderUtilization": "encoder_percent",
    "nvmlDeviceGetDecoderUtilization": "decoder_percent",
    "nvmlDeviceGetTotalEccErrors": "ecc_errors",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "throttle",
    "nvmlDeviceGetComputeRunningProcesses_v3": "pids",
    "nvmlDeviceGetHostVgpuMode": "vgpu",
    "nvmlDeviceGetMigMode": "mig",
}
"""The field of a row that each call gives."""
OTHERS = ("nvmlDeviceRegisterEvents",)
ASKED_ONCE = (
    *OTHERS,
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetHostVgpuMode",
)
"""The simulated card does not support these."""
CALLS = (*VITAL, MEMORY, *FIELDS, *OTHERS)
AFTER = 12
"""Calls that pass before a card hangs: some are made several times a reading."""


def rows(line: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row["index"]: row for row in line["gpus"]}


def is_well(row: dict[str, Any]) -> bool:
    """True if a row has all that the simulated card knows."""
    known = ("uuid", "name", "memory_bytes", "memory_used_bytes", "power_mw", "temperature_c", "pids", "mig")
    return row["error"] == "" and all(row[key] is not None for key in known)


def is_empty(value: Any) -> bool:
    return value in (None, "") or (isinstance(value, list) and all(one is None for one in value))


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_for_one_card_costs_that_card_alone(probe, call: str) -> None:
    asked = probe(f"{call}:fail={UNKNOWN_ERROR}:gpu=0")
    for _ in range(2):
        line = asked.line()
        assert is_well(rows(line)[1])
        if call in (*VITAL, MEMORY):
            [failed] = line["failed"]
            assert failed["index"] == 0 and "Unknown" in failed["error"] and 0 not in rows(line)
            assert bool(failed["uuid"]) == (call == MEMORY)
        else:
            assert not line["failed"] and rows(line)[0]["error"] == ""
            if call in FIELDS:
                assert is_empty(rows(line)[0][FIELDS[call]])
        if call not in OTHERS:
            assert line["errors"]["999"] >= 1


@pytest.mark.parametrize("call", [*VITAL, MEMORY])
def test_a_card_that_fails_later_keeps_its_last_figures_beside_the_error(probe, call: str) -> None:
    asked = probe(f"{call}:fail={GPU_IS_LOST}:gpu=0:after={AFTER}")
    line = asked.until(lambda found: rows(found)[0]["error"])
    assert is_well(rows(line)[1])
    assert rows(line)[0]["lost"] and "lost" in rows(line)[0]["error"] and rows(line)[0]["memory_bytes"]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_hangs_for_one_card_costs_that_card_alone(probe, call: str) -> None:
    after = 0 if call in ASKED_ONCE else AFTER
    asked = probe(f"{call}:hang:gpu=0:after={after}")
    line = asked.until(lambda found: found["failed"] or rows(found).get(0, {"error": ""})["error"])
    if call in ASKED_ONCE:
        assert "has not answered" in line["failed"][0]["error"]
    else:
        assert "has not answered for 0.4 s" in rows(line)[0]["error"]
        assert rows(line)[0]["memory_bytes"], "its last figures stay"
    for _ in range(10):
        line = asked.line()
        assert is_well(rows(line)[1]) and line["duration_s"] < 5
    assert len(threads_of(asked)) <= 3, "one for each card, and never another"


@pytest.mark.parametrize("call", CALLS)
def test_what_a_card_does_not_support_is_asked_once(probe, call: str) -> None:
    """It is not supported at the first call and would be at the second."""
    times = {"nvmlDeviceGetClockInfo": 4, "nvmlDeviceGetTotalEccErrors": 2}.get(call, 1)
    asked = probe(f"{call}:fail={NOT_SUPPORTED}:gpu=0:count={times}")
    for _ in range(4):
        line = asked.line()
        assert is_well(rows(line)[1])
        if call in VITAL:
            continue
        mine = rows(line)[0]
        assert mine["error"] == "" and not line["failed"] and not line["errors"]
        if call == MEMORY:
            assert mine["memory_source"] == "cuda"
            assert 0.95 < mine["memory_bytes"] / rows(line)[1]["memory_bytes"] <= 1, (
                "without what is reserved"
            )
            assert mine["memory_used_bytes"] == 0, "of processes, there are none"
        elif call == "nvmlDeviceGetComputeRunningProcesses_v3":
            assert mine["pids"] == [], "an earlier version of the call knows"
        elif call in FIELDS:
            assert is_empty(mine[FIELDS[call]])
    if call in VITAL:
        asked.until(lambda found: rows(found).get(0) and is_well(rows(found)[0]))


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_without_any_card_nvml_itself_fails(probe, call: str) -> None:
    line = probe(f"{call}:fail={UNKNOWN_ERROR}").line()
    assert "Unknown" in line["error"] and line["code"] == "999"


def test_a_card_without_memory_information_has_the_operators_total(probe) -> None:
    uuid = rows(probe().line())[0]["uuid"]
    fault = f"{MEMORY}:fail={NOT_SUPPORTED}"
    assert totals(probe(fault, {"0": 5 << 30, "1": 6 << 30})) == [("option", 5 << 30), ("option", 6 << 30)]
    assert totals(probe(fault, {uuid[:12]: 7 << 30, "*": 8 << 30})) == [
        ("option", 7 << 30),
        ("option", 8 << 30),
    ]
    by_cuda = totals(probe(f"{fault}:gpu=1", {"0": 5 << 30}))
    assert by_cuda[0][0] == "nvml", "where NVML has a total that one holds"
    assert by_cuda[1][0] == "cuda" and 0.95 < by_cuda[1][1] / by_cuda[0][1] <= 1


def totals(asked: Any) -> list[tuple[str, int]]:
    found = rows(asked.line())
    return [(found[index]["memory_source"], found[index]["memory_bytes"]) for index in (0, 1)]


@pytest.mark.parametrize(
    ("cuda", "reason"),
    [("cuInit:fail=100", "cuInit answers 100"), ("cuDeviceTotalMem_v2:fail=999", "cuDeviceTotalMem_v2")],
)
def test_a_card_whose_memory_nothing_says_is_told_with_the_way_out(probe, cuda: str, reason: str) -> None:
    asked = probe(f"{MEMORY}:fail={NOT_SUPPORTED}:gpu=0,{cuda}")
    line = asked.line()
    assert is_well(rows(line)[1])
    [failed] = line["failed"]
    assert reason in failed["error"] and "set gpu_memory" in failed["error"] and failed["uuid"]


def test_a_card_that_hangs_from_the_start_is_named_and_the_other_is_there(probe) -> None:
    asked = probe(f"{MEMORY}:hang:gpu=1")
    line = asked.until(lambda found: found["failed"])
    assert is_well(rows(line)[0])
    [failed] = line["failed"]
    assert failed["index"] == 1 and failed["uuid"] and "has not answered" in failed["error"]


def threads_of(asked: Any) -> list[str]:
    from pathlib import Path

    return [path.name for path in Path(f"/proc/{asked.process.pid}/task").iterdir()]
