# SPDX-License-Identifier: Apache-2.0
"""`gpulimit demo` on a simulated GPU, shortened: daemon, tenants, kills and all, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SHM, StartProcess

DEMO = (sys.executable, "-P", "-m", "limiter", "demo", "--sim")


def left_by(pid: int, env: dict[str, str]) -> list[str]:
    """Return what a demo has left: shared memory with its number, and processes with its environment."""
    files = [p.name for p in SHM.iterdir() if f"demo-{pid}" in p.name]
    mark = f"TMPDIR={env['TMPDIR']}\0".encode()
    return files + [str(p) for p in processes() if mark in environ(p)]


def processes() -> list[Path]:
    return [p for p in Path("/proc").iterdir() if p.name.isdecimal()]


def environ(process: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (process / "environ").read_bytes()
    return b""


def wait_gone(pid: int, env: dict[str, str]) -> None:
    end = time.monotonic() + 5
    while left_by(pid, env) and time.monotonic() < end:
        time.sleep(0.05)
    assert left_by(pid, env) == []


@pytest.fixture
def demo_env(sim_env: dict[str, str]) -> Iterator[dict[str, str]]:
    """An environment full of quotas and daemon's options that are none of the demo's business."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield sim_env | {
            "TMPDIR": folder,
            "GPULIMIT_MEMORY": "1MiB",
            "CUDA_DEVICE_SM_LIMIT": "1",
            "GPULIMITD_ADMISSION": "deny",
        }
        assert list(Path(folder).iterdir()) == []


def test_the_demo_keeps_its_promises_and_cleans_up(start_process: StartProcess, demo_env) -> None:
    process = start_process([*DEMO, "--seconds", "6"], env=demo_env)
    out, err = process.communicate(timeout=55)
    assert process.returncode == 0, out + err
    assert "SIMULATED GPU" in out
    assert "refused at" in out
    assert "its part goes to the others" in out
    assert "no daemon" in out
    assert "has all three back" in out
    closing = out.splitlines()[-1]
    assert closing.startswith(("everything as promised", "as promised, as far as this host lets it be seen"))
    assert closing.endswith("(on a simulated GPU)")
    assert "\033" not in out
    wait_gone(process.pid, demo_env)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_everything_that_it_started(
    start_process: StartProcess, demo_env, number
) -> None:
    process = start_process(DEMO, env=demo_env)
    assert process.stdout is not None
    for line in process.stdout:
        if "refused at" in line:
            break
    for _ in range(10):
        process.send_signal(number)
        time.sleep(0.0002)
    process.communicate(timeout=20)
    assert process.returncode == 128 + number
    wait_gone(process.pid, demo_env)


def test_killed_it_leaves_no_process(start_process: StartProcess, demo_env) -> None:
    process = start_process(DEMO, env=demo_env)
    assert process.stdout is not None
    for line in process.stdout:
        if "refused at" in line:
            break
    process.kill()
    process.wait(timeout=5)
    for name in eventually_only_files(process.pid, demo_env):
        (SHM / name).unlink()
    for folder in Path(demo_env["TMPDIR"]).iterdir():
        shutil.rmtree(folder)


def eventually_only_files(pid: int, env: dict[str, str]) -> list[str]:
    end = time.monotonic() + 5
    while any(name.startswith("/proc") for name in left_by(pid, env)):
        assert time.monotonic() < end
        time.sleep(0.05)
    return left_by(pid, env)


def test_the_first_table_is_there_within_seconds(demo_env) -> None:
    ours, theirs = pty.openpty()
    began = time.monotonic()
    process = subprocess.Popen(
        DEMO, env=demo_env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    text = b""
    try:
        while b"daemon running" not in text and time.monotonic() < began + 20:
            text += os.read(ours, 4096)
        assert b"TENANT" in text
        assert time.monotonic() - began < 10
        while text.count(b"\033[5A") == 0 and time.monotonic() < began + 20:
            text += os.read(ours, 4096)
        assert b"\033[5A" not in text.partition(b"TENANT")[0]
    finally:
        os.kill(process.pid, signal.SIGINT)
        with contextlib.suppress(OSError):
            while os.read(ours, 4096):
                pass
        process.wait(timeout=20)
        os.close(ours)
    wait_gone(process.pid, demo_env)
