# SPDX-License-Identifier: Apache-2.0
"""Books that the dead have left without a daemon: processes that start later remove them, and none in use."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest

from limiter import segment
from tests.conftest import SHM, remove_segments
from tests.segments import craft

GRACE_S = 3
MOST_LEFT = 16
BEGIN = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0), flush=True)"
STAY = f"{BEGIN}\nimport sys; sys.stdin.readline()"


def own(tenant: str) -> set[str]:
    """Return the names of a test's segments."""
    return {path.name.removeprefix("gpulimit.u.") for path in SHM.glob(f"gpulimit.u.{tenant}*")}


def run(run_process: Any, env: dict[str, str], name: str) -> None:
    done = run_process([sys.executable, "-I", "-c", BEGIN], env=env | {"GPULIMIT_TENANT": name})
    assert done.stdout == "0\n", done.stderr


def age(tenant: str) -> None:
    """Have it that what was found dead was found so long ago."""
    for path in SHM.glob(f"gpulimit.u.{tenant}*"):
        if path.stat().st_mode & 0o100:
            os.utime(path, (time.time() - GRACE_S - 1,) * 2)


@pytest.fixture
def small_env(limited_env: dict[str, str]) -> dict[str, str]:
    return limited_env | {"GPULIMIT_MEMORY": "64MiB", "GPULIMIT_SIM_PROFILE": "small"}


def test_books_of_the_dead_are_removed_by_a_later_start(run_process, small_env, tenant) -> None:
    for number in range(4):
        run(run_process, small_env, f"{tenant}-{number}")
    assert f"{tenant}-3" in own(tenant)  # its figures can still be read
    run(run_process, small_env, f"{tenant}-4")
    age(tenant)
    run(run_process, small_env, f"{tenant}-5")
    assert own(tenant) <= {f"{tenant}-4", f"{tenant}-5"}


def test_many_dead_tenants_leave_few_files(run_process, small_env, tenant) -> None:
    for number in range(MOST_LEFT + 10):
        run(run_process, small_env, f"{tenant}-{number}")
    assert len(own(tenant)) <= MOST_LEFT + 2


def test_books_of_the_living_stay(run_process, start_process, small_env, tenant) -> None:
    argv = [sys.executable, "-I", "-c", STAY]
    living = start_process(argv, env=small_env | {"GPULIMIT_TENANT": f"{tenant}-a"}, stdin=-1)
    assert living.stdout.readline() == "0\n"
    path = segment.path_of(f"{tenant}-a")
    path.chmod(0o700)
    os.utime(path, (0, 0))  # as if it had been found dead long ago
    inode = path.stat().st_ino
    run(run_process, small_env, f"{tenant}-b")
    assert path.stat().st_ino == inode
    assert [p.is_alive for p in segment.read(f"{tenant}-a").processes] == [True]


def test_one_that_comes_back_is_not_taken_for_dead(run_process, small_env, tenant) -> None:
    for name in ("a", "b", "a"):
        run(run_process, small_env, f"{tenant}-{name}")
    assert segment.path_of(f"{tenant}-a").stat().st_mode & 0o777 == 0o600


def test_what_the_library_has_not_made_stays(run_process, small_env, tenant) -> None:
    names = [f"{tenant}-{kind}" for kind in ("crafted", "empty", "folder", "link")]
    paths = [SHM / f"gpulimit.u.{name}" for name in names]
    paths[0].write_bytes(craft({"devices": [{}], "slots": [{}]}))
    paths[1].write_bytes(b"")
    paths[2].mkdir()
    paths[3].symlink_to("/etc/passwd")
    try:
        for path in paths[:2]:
            path.chmod(0o700)
            os.utime(path, (0, 0))
        run(run_process, small_env, f"{tenant}-z")
        assert set(names) <= own(tenant)
    finally:
        paths[2].rmdir()
        paths[3].unlink()
        remove_segments(tenant)


@pytest.mark.slow
def test_starters_and_removers_at_once_never_lose_books(start_process, small_env, tenant) -> None:
    """Short processes of few names, all found dead long ago: each gets in, and its quota holds."""
    script = (
        "import ctypes, os, sys, time\n"
        "for _ in range(40):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        os.environ['GPULIMIT_TENANT'] = sys.argv[1] + str(os.getpid() % 3)\n"
        "        os._exit(1 if ctypes.CDLL('libcuda.so.1').cuInit(0) else 0)\n"
        "    status = os.waitpid(pid, 0)[1]\n"
        "    if status: print('failed', status, flush=True)\n"
        "print('done', flush=True)\n"
    )
    argv = [sys.executable, "-I", "-c", script, f"{tenant}-"]
    running = [start_process(argv, env=small_env) for _ in range(4)]
    while any(one.poll() is None for one in running):
        for path in SHM.glob(f"gpulimit.u.{tenant}*"):
            try:
                if path.stat().st_mode & 0o100:
                    os.utime(path, (0, 0))
            except FileNotFoundError:
                continue
        time.sleep(0.001)
    assert [one.stdout.read() for one in running] == ["done\n"] * 4
