# SPDX-License-Identifier: Apache-2.0
"""`probe(faults, …)`: the process that asks NVML, on a simulated machine of two cards, line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Built, StartProcess, clean_environ

PERIOD_S, SILENT_S = 0.1, 0.4


class Probe:
    """A running probe."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            assert self.process.stderr is not None
            pytest.fail(f"the probe has ended: {self.process.stderr.read()}")
        return dict(json.loads(text))

    def until(self, check: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Return the first line of which `check` is true; the test's time limit bounds it."""
        while not check(line := self.line()):
            pass
        return line


@pytest.fixture
def probe(built: Built, tmp_path: Path, start_process: StartProcess) -> Iterator[Callable[..., Probe]]:
    made: list[Probe] = []

    def start(faults: str = "", totals: Mapping[str, int] | None = None, **variables: str) -> Probe:
        env = clean_environ() | {
            "LD_LIBRARY_PATH": str(built.sim),
            "GPULIMIT_SIM_STATE": str(tmp_path / "sim.state"),
            "GPULIMIT_SIM_PROFILE": "two-h100",
            "GPULIMIT_SIM_FAULTS": faults,
            **variables,
        }
        numbers = (str(PERIOD_S), str(SILENT_S), json.dumps(dict(totals or {})))
        argv = [sys.executable, "-P", "-m", "hypervisor.nvml.probe", *numbers]
        made.append(Probe(start_process(argv, env=env)))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
