# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the library's side of the daemon: a stand-in for the daemon and a program that obeys."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Program
from .stand_in import Daemon

UUID = bytes(range(1, 17))
UUID_TEXT = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
MIB, MS = 1 << 20, 1_000_000
OUT_OF_MEMORY, NOT_PERMITTED = "2", "800"


@pytest.fixture
def daemon(tmp_path: Path, tenant: str) -> Iterator[Daemon]:
    # A path of its own: a socket's may have 107 characters only, and pytest's are long.
    path = Path(f"/tmp/{tenant}.sock")
    stand_in = Daemon(path, tenant, uuids=[UUID])
    stand_in.start()
    yield stand_in
    stand_in.close()


class ScriptedProcess:
    """A running tests/c/scripted.c."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def ask(self, line: str) -> str:
        self.say(line)
        return self.hear()

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self) -> str:
        """Let it end; return what it said on stderr."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.stdin = None
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, errors
        return errors

    def agent(self) -> Path | None:
        """The library's thread."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            if (task / "comm").read_text() == "gpulimit\n":
                return task
        return None


Start = Callable[..., ScriptedProcess]


@pytest.fixture
def env(limited_env: dict[str, str], tenant: str) -> dict[str, str]:
    return limited_env | {
        "GPULIMIT_SIM_PROFILE": "small",
        "GPULIMIT_SIM_SET": f"uuid={UUID_TEXT}",
        "GPULIMIT_SOCKET": f"/tmp/{tenant}.sock",
    }


@pytest.fixture
def start(program: Program, start_process: Any, env: dict[str, str]) -> Start:
    binary = program("scripted")

    def begin(environ: Mapping[str, str | None] | None = None, **more: str) -> ScriptedProcess:
        wanted = {k: v for k, v in (env | more | (environ or {})).items() if v is not None}
        return ScriptedProcess(start_process([binary], env=wanted, stdin=subprocess.PIPE))

    return begin


def spin_s(process: ScriptedProcess, ns: int, count: int) -> float:
    """Let it launch so many kernels of so many ns; return how long they took."""
    code, seconds = process.ask(f"spin {ns} {count}").split()
    assert code == "0"
    return float(seconds)


def launched(process: ScriptedProcess) -> int:
    """Return how many launches its loop has made."""
    return int(process.ask("count"))


@pytest.fixture
def sharer(daemon: Daemon, start: Start) -> ScriptedProcess:
    """A process that has launched a little, then one of two who want the GPU."""
    process = start()
    assert process.ask("init") == "0"
    spin_s(process, MS, 20)
    daemon.grant(daemon.spent_ns())
    return process
