# SPDX-License-Identifier: Apache-2.0
"""Facts of the driver that the simulated one claims, and what odd calls answer under a quota."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import PROGRAMS, QUOTA, REHEARSAL, ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]
MIB = 1 << 20
INSIDE = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.mark.alone  # it reads how much of the card is free
def test_the_driver_does_as_the_simulated_one(run_program: Any, card_env: dict[str, str]) -> None:
    run_program("driver_answers.py", "facts", env=card_env).verify()


def test_odd_calls_graphs_and_shared_memory_under_a_quota(
    run_program: Any, quota_env: dict[str, str]
) -> None:
    outcome = run_program("driver_answers.py", "quota", env=quota_env)
    outcome.verify()
    assert outcome.peak_bytes is None or outcome.peak_bytes < QUOTA


@pytest.fixture
def daemon_socket(
    card_env: dict[str, str], tmp_path: Path, tenant: str, start_process: Any
) -> Iterator[Path]:
    path = tmp_path / "d.sock"
    flags = ["--socket", path, "--state-dir", tmp_path / "state", "--state-segment", f"gpulimit.s.{tenant}"]
    argv = [sys.executable, "-P", "-m", "hypervisor", *flags, "--metrics-addr", "127.0.0.1:0"]
    process = start_process([*argv, *(["--sim"] if REHEARSAL else [])], env=card_env, cwd=ROOT)
    for _ in range(200):
        if path.exists() or process.poll() is not None:
            break
        subprocess.run(["sleep", "0.1"], check=True)
    yield path
    process.terminate()
    process.wait(timeout=10)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("with_daemon", [False, True], ids=["alone", "daemon"])
def test_code_is_charged_in_every_pid_namespace(
    quota_env: dict[str, str], daemon_socket: Path, with_daemon: bool, depth: int, note: Any
) -> None:
    """NVML lists the process under its pid inside, and what its modules take is charged, as it is outside."""
    if depth and (os.geteuid() != 0 or not shutil.which("unshare")):
        pytest.skip("needs root and unshare")
    env = quota_env | ({"GPULIMIT_SOCKET": str(daemon_socket)} if with_daemon else {})
    preload = env.pop("LD_PRELOAD")
    argv = [
        *INSIDE * depth,
        "env",
        f"LD_PRELOAD={preload}",
        sys.executable,
        str(PROGRAMS / "pid_namespace.py"),
    ]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    note("pid_namespace", done.stdout.strip())
    assert said["listed"] == [said["pid"]]
    # 40 modules with 4 MiB of variables each (the simulated ones take 2 MiB).
    assert said["after"] - said["before"] >= (60 if REHEARSAL else 160) * MIB
