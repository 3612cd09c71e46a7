# SPDX-License-Identifier: Apache-2.0
"""bench/idle.py, rehearsed with few workers: what it prints is simulated, and looked at for its shape."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.conftest import ROOT, clean_environ


def test_it_measures_alone_and_with_workers_that_wait(built, run_process, tmp_path: Path) -> None:
    out = tmp_path / "idle.json"
    options = [
        "--sim",
        "--workers",
        "30",
        "--tenants",
        "3",
        "--spread",
        "0",
        "--seconds",
        "0.5",
        "--out",
        out,
    ]
    argv = [sys.executable, ROOT / "bench" / "idle.py", "--library", built.library, *options]
    done = run_process(argv, env=clean_environ(), timeout=60, expect=0)
    rest, waiting = json.loads(out.read_text())["results"]
    assert (rest["workers"], waiting["workers"]) == (0, 30)
    assert 0 < waiting["cores"] < 1
    assert waiting["resident_mib"] > 10
    assert done.stdout.splitlines()[1].startswith("   30 workers wait: ")
