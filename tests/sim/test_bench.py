# SPDX-License-Identifier: Apache-2.0
"""Programs of bench/, rehearsed: what they print is simulated, and only looked at for its shape."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.timeout(120)


def test_fair_measures_turns_and_the_daemons_cost(built, sim_env, run_process, tmp_path: Path) -> None:
    out = tmp_path / "fair.json"
    options = [
        "--sides",
        "daemon",
        "--scenarios",
        "two-1:3,training,requests",
        "--seconds",
        "0.5",
        "--out",
        str(out),
    ]
    argv = [sys.executable, ROOT / "bench" / "fair.py", "--library", built.library, *options]
    env = {name: value for name, value in sim_env.items() if name != "GPULIMIT_TENANT"}
    run_process(argv, env=env | {"GPULIMIT_TEST_GPU": "sim"}, timeout=100, expect=0)
    found: dict[str, Any] = {scenario["scenario"]: scenario for scenario in json.loads(out.read_text())}
    two, training, requests = (found[name] for name in ("two-1:3", "training", "requests"))
    assert min(two["rates"]) > 0
    assert len(two["alone"]) == 2
    assert len(training["ratios"]) == len(training["turns"]["beside"]) == 7
    assert len(training["turns"]["alone"]) == 8
    assert min(training["turns"]["other"]) > 0
    assert training["rows"][0].startswith("training               daemon needs ")
    assert len(requests["served_ms"]) > 10
