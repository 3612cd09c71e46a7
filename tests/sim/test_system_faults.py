# SPDX-License-Identifier: Apache-2.0
"""The library's own system calls fail, one after the other: nothing is unlimited, the true reason is given.

tests/c/faults/calls.c lies before the library and makes the nth call of a name fail; the program first says
how often each is called.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import SOURCES, Program
from .sharing import MIB, Member

ERRORS = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.EFAULT, errno.EIO)
NAMES = (
    *("openat", "fstat", "ftruncate", "fcntl", "fallocate", "read", "readlinkat", "mmap", "madvise", "futex"),
    "write",
)
QUOTA = {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "64MiB"}
REFUSED, OUT_OF_MEMORY = "800", "2"
Run = Callable[..., Any]


@pytest.fixture(scope="session")
def injector(compile_c: Any) -> Path:
    flags = ("-shared", "-fPIC", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-ldl")
    return Path(compile_c(SOURCES / "faults" / "calls.c", *flags, name="faults.so"))


@pytest.fixture
def run(
    injector: Path, program: Program, run_process: Any, limited_env: dict[str, str], tmp_path: Path
) -> Run:
    """Run `refusal`, which takes 60 MiB and then 8 more, with one call failing."""

    def go(fault: str = "none:0:1", **environ: str) -> Any:
        env = limited_env | QUOTA | {"SYSTEM_FAULT": fault, "SYSTEM_CALLS": str(tmp_path / "calls")} | environ
        env["LD_PRELOAD"] = f"{injector}:{env['LD_PRELOAD']}"
        env = {name: value for name, value in env.items() if value}
        return run_process([program("manners/refusal")], env=env)

    return go


def calls(path: Path) -> dict[str, int]:
    """Return how often the library made each call."""
    return {name: int(count) for name, count in (line.split() for line in path.read_text().splitlines())}


def faults(counted: dict[str, int], name: str, errors: tuple[int, ...] = ERRORS) -> Iterator[tuple[str, int]]:
    for nth in range(1, counted.get(name, 0) + 1):
        for error in errors:
            yield f"{name}:{nth}:{error}", error


def check(ended: Any, fault: str, error: int) -> None:
    """Whatever came of it, the quota held; and who is refused is told why."""
    assert ended.returncode == 0, (fault, ended.stderr)
    answers = ended.stdout.split()
    assert len(answers) == 6, fault
    given = [answer == "0" for answer in answers[4:]]
    assert given != [True, True], f"{fault}: unlimited"
    if REFUSED in answers:
        (line,) = ended.stderr.splitlines()
        assert "every CUDA call of this process is refused" in line, fault
        assert os.strerror(error) in line, (fault, line)
    else:
        assert ended.stderr == "", fault
        assert given == [True, False] or fault.startswith("mmap"), (fault, answers)


@pytest.mark.parametrize("tenant_is", ["named", "default"])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_fails_leaves_the_quota_in_force_and_says_why(
    run: Run, tmp_path: Path, name: str, tenant_is: str
) -> None:
    environ = {"GPULIMIT_TENANT": ""} if tenant_is == "default" else {}
    ended = run(**environ)
    assert ended.stdout.split() == ["0", "0", "0", "0", "0", OUT_OF_MEMORY], ended.stderr
    for fault, error in faults(calls(tmp_path / "calls"), name):
        check(run(fault, **environ), fault, error)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_fails_in_a_newcomer_leaves_the_books_of_the_living(
    run: Run, tmp_path: Path, member: Callable[..., Member], name: str
) -> None:
    living = member(**QUOTA)
    assert living("alloc", 60 * MIB)[0] == 0
    assert run().stdout.split()[-2:] == [OUT_OF_MEMORY, OUT_OF_MEMORY]
    for fault, error in faults(calls(tmp_path / "calls"), name, (errno.EIO, errno.EMFILE)):
        ended = run(fault)
        assert "0" not in ended.stdout.split()[4:], (fault, ended.stdout)
        if REFUSED in ended.stdout.split():
            assert os.strerror(error) in ended.stderr, (fault, ended.stderr)
        assert living.used() == 60 * MIB, fault


def test_the_injector_finds_the_calls_that_it_is_about(run: Run, tmp_path: Path) -> None:
    run()
    counted = calls(tmp_path / "calls")
    assert {"openat", "fstat", "ftruncate", "fcntl", "fallocate", "read", "mmap"} <= set(counted)
    assert set(counted) <= {*NAMES, "geteuid", "nanosleep"}


@pytest.mark.parametrize("descriptors", [6, 7, 8, 10])
def test_a_process_with_few_descriptors_is_limited_and_no_wrong_reason_is_given(
    program: Program, run_process: Any, limited_env: dict[str, str], descriptors: int
) -> None:
    """Where NVML cannot start for want of one, that is what is said, not that a context does not fit."""
    env = limited_env | {"GPULIMIT_SIM_PROFILE": "h200", "GPULIMIT_MEMORY": "580MiB", "GPULIMIT_LOG": "warn"}
    preload = env.pop("LD_PRELOAD")
    script = f'ulimit -n {descriptors}; exec env LD_PRELOAD="$1" "$2"'
    ended = run_process(["sh", "-c", script, "sh", preload, program("manners/refusal")], env=env)
    assert ended.stdout.split() == ["0", "0", "0", "0", "0", OUT_OF_MEMORY]
    assert "does not fit" not in ended.stderr
    if descriptors == 6:
        assert "no file descriptor" in ended.stderr
