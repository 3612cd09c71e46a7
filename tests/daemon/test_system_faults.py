# SPDX-License-Identifier: Apache-2.0
"""The library's own system calls on the way to the daemon fail, one after the other.

The process is limited, or refused with the true reason; it is never unlimited (tests/c/faults/calls.c).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Built
from tests.sim.conftest import SOURCES
from tests.sim.test_system_faults import calls

ERRORS = (errno.ENOMEM, errno.EMFILE, errno.EIO)
NAMES = ("socket", "connect", "sendto", "recvmsg", "ppoll", "openat", "fstat", "fcntl", "fallocate", "mmap")
AT_MOST = 4
"""Calls of one name that fail in turn."""
Run = Callable[..., Any]


@pytest.fixture
def run(
    daemon: Any,
    daemon_env: dict[str, str],
    built: Built,
    run_dir: Path,
    tenant: str,
    compile_c: Any,
    program: Any,
    run_process: Any,
    tmp_path: Path,
) -> Run:
    """Run `refusal`, which takes 60 MiB and then 8 more, under a daemon's quota of 64 MiB."""
    node = daemon(env={"GPULIMIT_SIM_PROFILE": "small"})
    assert node.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "64MiB"})[0] == 200
    flags = ("-shared", "-fPIC", "-D_GNU_SOURCE", "-O1", "-ldl")
    injector = compile_c(SOURCES / "faults" / "calls.c", *flags, name="faults.so")

    def go(fault: str = "none:0:1", wait_s: int = 20) -> Any:
        env = daemon_env | {
            "LD_LIBRARY_PATH": str(built.sim),
            "LD_PRELOAD": f"{injector}:{built.library}",
            "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
            "GPULIMIT_TENANT": tenant,
            "GPULIMIT_WAIT": str(wait_s),
            "SYSTEM_FAULT": fault,
            "SYSTEM_CALLS": str(tmp_path / "calls"),
        }
        return run_process([program("manners/refusal")], env=env)

    return go


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_fails_leaves_the_quota_in_force_and_says_why(
    run: Run, tmp_path: Path, name: str
) -> None:
    assert run().stdout.split()[4:] == ["0", "2"]
    counted = calls(tmp_path / "calls").get(name, 0)
    for nth in range(1, min(counted, AT_MOST) + 1):
        for error in ERRORS:
            ended = run(f"{name}:{nth}:{error}")
            answers = ended.stdout.split()
            assert ended.returncode == 0 and answers[4:] != ["0", "0"], (nth, error, ended.stdout)
            if "800" in answers:
                (line,) = ended.stderr.splitlines()
                assert "every CUDA call of this process is refused" in line
                assert os.strerror(error) in line, (nth, error, line)
            else:
                assert answers[4:] == ["0", "2"] or name == "mmap", (nth, error, answers)


@pytest.mark.parametrize("name", ["socket", "connect", "sendto", "recvmsg"])
def test_a_call_that_always_fails_is_the_reason_that_is_given(run: Run, name: str) -> None:
    for error in ERRORS:
        ended = run(f"{name}:0:{error}", wait_s=0)
        assert set(ended.stdout.split()) == {"800", "3"}
        (line,) = ended.stderr.splitlines()
        assert "does not answer" in line and os.strerror(error) in line, (error, line)


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.EPERM])
def test_without_a_thread_for_commands_the_quota_holds(run: Run, error: int) -> None:
    ended = run(f"clone:0:{error}")
    assert ended.stdout.split()[4:] == ["0", "2"], ended.stderr
