# SPDX-License-Identifier: Apache-2.0
"""MIG devices of the simulated driver: which of them a program gets, and what NVML tells of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .test_sim_driver import program

CARD = "GPU-7af45170-de0c-71ef-81f1-690ff4ea5263"
WHOLE = "H100:81f1"
FIRST, SECOND, THIRD = "H100:d8f5", "H100:2365", "H100:6e88"
NVML = Path(__file__).resolve().parent / "mig_by_nvml.py"


@pytest.mark.parametrize(
    ("profile", "visible", "seen"),
    [
        ("mig-h100", None, f"0 {WHOLE}"),  # a whole card comes first, and with it no MIG device
        ("mig-h100", "0", f"0 {WHOLE}"),
        ("mig-h100", "1", "100"),
        ("mig-h100", "MIG-6e88e836-6dae-5b63-1274-06f6808f4420", f"0 {THIRD}"),
        ("mig-h100", "MIG-6E88", f"0 {THIRD}"),
        ("mig-h100", "MIG-d8f5,MIG-6e88", f"0 {FIRST}"),  # one at most
        ("mig-h100", f"MIG-{CARD}/8/0", f"0 {SECOND}"),  # the older form
        ("mig-h100", f"MIG-{CARD}/10/0", "100"),
        ("mig-h100", CARD, f"0 {FIRST}"),
        ("mig-h100", "MIG-dead", "100"),
        ("mig-h100", "", "100"),
        ("mig-a100", None, "0 A100-SXM4-80GB:abca"),
        ("mig-a100", "0", "0 A100-SXM4-80GB:abca"),
        ("mig-a100", "MIG-53db", "0 A100-SXM4-80GB:53db"),
    ],
)
def test_a_program_gets_one_mig_device_at_most(
    profile: str,
    visible: str | None,
    seen: str,
    compile_c: Any,
    built: Any,
    sim_env: dict[str, str],
    run_process: Any,
) -> None:
    env = sim_env | {"GPULIMIT_SIM_PROFILE": profile}
    env |= {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {}
    ended = run_process([program(compile_c, built, "visible_devices")], env=env, expect=0)
    assert ended.stdout.strip() == seen


def test_nvml_numbers_have_holes_and_layouts_change_while_it_runs(
    sim_env: dict[str, str], run_process: Any
) -> None:
    env = sim_env | {"GPULIMIT_SIM_PROFILE": "mig-h100"}
    ended = run_process([sys.executable, NVML], env=env, expect=0)
    before, after, off = (json.loads(line) for line in ended.stdout.splitlines())
    assert sorted(before["devices"]) == ["0", "1", "2", "4"]
    assert before["devices"]["2"]["name"].endswith("MIG 2g.20gb")
    assert before["mode"] == [1, 1]
    assert before["utilisation"] == "Not Supported"
    assert sorted(after["devices"]) == ["0", "2"]
    assert after["devices"]["2"] == before["devices"]["2"]  # what stays is the same device
    assert after["devices"]["0"]["uuid"] != before["devices"]["0"]["uuid"]
    assert off["mode"] == [0, 0] and off["devices"] == {}
