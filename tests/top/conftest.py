# SPDX-License-Identifier: Apache-2.0
"""A daemon with tenants to look at (fixtures of tests/metrics), and `top` against it.

- `top(*arguments)`: runs `gpulimit top` to its end, on the test's machine.
- `terminal(*arguments, columns=…, lines=…)`: the same on a terminal of the test's own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, RunProcess
from tests.daemon.conftest import daemon, daemon_env, other_tenant, run_dir
from tests.metrics.conftest import node, work, xid
from tests.top.terminal import Terminal

__all__ = ["daemon", "daemon_env", "node", "other_tenant", "run_dir", "work", "xid"]

TOP = (sys.executable, "-P", "-m", "hypervisor.top", "--sim")


@pytest.fixture
def top_env(daemon_env: dict[str, str], run_dir: Path) -> dict[str, str]:
    """Environment of `gpulimit top` on the test's machine, whether its daemon runs or not."""
    return daemon_env | {"GPULIMIT_SOCKET": str(run_dir / "daemon.sock")}


@pytest.fixture
def top(top_env: dict[str, str], run_process: RunProcess) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return run_process([*TOP, *arguments], env=top_env, cwd=ROOT, **options)

    return run


@pytest.fixture
def terminal(top_env: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*arguments: str, columns: int = 80, lines: int = 24, **variables: str) -> Terminal:
        made.append(Terminal([*TOP, *arguments], env=top_env | variables, columns=columns, lines=lines))
        return made[-1]

    yield start
    for one in made:
        one.close()
