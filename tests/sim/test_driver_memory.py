# SPDX-License-Identifier: Apache-2.0
"""The driver's own calls under a memory quota: the program that tests/gpu/ runs on a real card."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "gpu" / "programs" / "driver_memory.py"
QUOTA = 4 << 30


def test_every_path_stops_at_the_quota_and_gives_back(run_process: Any, limited_env: dict[str, str]) -> None:
    env = limited_env | {"GPULIMIT_MEMORY": str(QUOTA), "QUOTA_BYTES": str(QUOTA), "PYTHONPATH": str(ROOT)}
    done = run_process([sys.executable, PROGRAM], env=env, timeout=60, expect=0)
    *checks, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [check["error"] for check in checks if not check["ok"]]
    assert last == {"tried": len(checks)}
    assert done.stderr == ""
