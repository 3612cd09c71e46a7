# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong, no process is ever unlimited: it is refused, in one line that says why."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from limiter._native import ffi, lib

from limiter import segment

from ..conftest import needs_program
from ..segments import craft
from .conftest import Program

REFUSED, OUT_OF_MEMORY = "800", "2"
SMALL = {"GPULIMIT_SIM_PROFILE": "small"}
QUOTA = {"GPULIMIT_MEMORY": "64MiB", "GPULIMIT_COMPUTE": "50"}
UNREADABLE = {"nonsense": "4GX", "zero": "0"}


@pytest.fixture
def for_everybody(
    built: Any, program: Program, sim_env: dict[str, str], open_folder: Path
) -> tuple[Path, dict[str, str]]:
    """`refusal`, the library and the simulated driver where another user can read them."""
    shutil.copytree(built.sim, open_folder / "sim", symlinks=True, ignore=shutil.ignore_patterns("objects"))
    shutil.copy(built.library, open_folder)
    binary = Path(shutil.copy(program("manners/refusal"), open_folder))
    env = sim_env | SMALL | {"LD_PRELOAD": str(open_folder / "libgpulimit.so")}
    env |= {"LD_LIBRARY_PATH": str(open_folder / "sim"), "GPULIMIT_SIM_STATE": str(open_folder / "state")}
    return binary, env


@pytest.mark.parametrize("quota", sorted(UNREADABLE))
def test_a_quota_that_cannot_be_read_refuses_every_call_with_one_line(
    program: Program, run_process: Any, limited_env: dict[str, str], quota: str
) -> None:
    ended = run_process(
        [program("manners/refusal")],
        env=limited_env | SMALL | {"GPULIMIT_MEMORY": UNREADABLE[quota]},
        expect=0,
    )
    if quota == "zero" and ended.stderr == "":  # a quota of nothing is a quota
        assert ended.stdout.split()[-2:] == [OUT_OF_MEMORY, OUT_OF_MEMORY]
        return
    assert ended.stdout.split() == refused()
    assert_one_line(ended.stderr, "GPULIMIT_MEMORY")


def refused() -> list[str]:
    """cuDeviceGetCount is the driver's own, which says that it was never initialised."""
    return [REFUSED, "3", REFUSED, REFUSED, REFUSED, REFUSED]


def assert_one_line(text: str, *words: str) -> None:
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert re.match(r"gpulimit\[\d+\] error: ", lines[0])
    assert "every CUDA call of this process is refused" in lines[0]
    for word in words:
        assert word in lines[0], text


def assert_refused(ended: Any, *words: str) -> None:
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == refused(), ended.stdout + ended.stderr
    assert_one_line(ended.stderr, *words)


def test_without_descriptors_to_spare_the_process_is_refused_and_not_unlimited(
    program: Program, run_process: Any, limited_env: dict[str, str]
) -> None:
    env = limited_env | SMALL | QUOTA
    assert_refused(run_process([program("manners/refusal"), "nofile"], env=env), "Too many open files")


def test_without_descriptors_a_process_does_not_leave_its_default_tenant(
    program: Program, run_process: Any, start_process: Any, limited_env: dict[str, str]
) -> None:
    """Neither with a quota of its own, which would be another tenant's, nor with none."""
    env = {k: v for k, v in limited_env.items() if k != "GPULIMIT_TENANT"} | SMALL
    for environ in (QUOTA, {}):
        ended = run_process([program("manners/refusal"), "nofile"], env=env | environ)
        assert_refused(ended, "Too many open files")


UNSHARE = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec"]
READ_ONLY = 'mount -t tmpfs -o ro none /dev/shm; exec "$0" "$@"'
FULL = 'mount -t tmpfs -o size=4k none /dev/shm; head -c 4096 /dev/zero > /dev/shm/x; exec "$0" "$@"'
TINY = 'mount -t tmpfs -o size=64k none /dev/shm; exec "$0" "$@"'
MISSING = """
d=$(mktemp -d); mount -t tmpfs none "$d"; cp -a /dev/null /dev/zero /dev/urandom "$d"; mount --move "$d" /dev
rmdir "$d"; exec "$0" "$@"
"""


@pytest.fixture
def elsewhere(run_process: Any, program: Program, limited_env: dict[str, str]) -> Any:
    """Run `refusal` in a mount namespace of its own, prepared by a script."""

    def run(script: str, **environ: str) -> Any:
        if os.geteuid() != 0 or not shutil.which("unshare"):
            pytest.skip("needs root and unshare")
        probe = subprocess.run([*UNSHARE, script, "true"], capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            pytest.skip(f"mounting is not permitted here: {probe.stderr.strip()}")
        env = dict(limited_env)
        preload = env.pop("LD_PRELOAD")
        argv = [*UNSHARE, script, "env", f"LD_PRELOAD={preload}", program("manners/refusal")]
        return run_process(argv, env=env | SMALL | QUOTA | environ)

    return run


@pytest.mark.parametrize(
    ("script", "word"),
    [(READ_ONLY, "Read-only file system"), (FULL, "No space left"), (MISSING, "there is no /dev/shm")],
    ids=["read-only", "full", "missing"],
)
def test_where_there_is_no_shared_memory_the_process_is_refused(
    elsewhere: Any, script: str, word: str
) -> None:
    assert_refused(elsewhere(script), word)


def test_little_shared_memory_is_enough(elsewhere: Any) -> None:
    ended = elsewhere(TINY)
    assert (ended.stdout.split()[-2:], ended.stderr) == (["0", OUT_OF_MEMORY], "")


@pytest.fixture
def planted(tenant: str) -> Path:
    return segment.path_of(tenant)


@pytest.mark.parametrize("kind", ["foreign", "folder", "link", "fifo", "unreadable"])
def test_what_is_not_the_user_s_own_file_is_not_used(
    run_process: Any,
    for_everybody: tuple[Path, dict[str, str]],
    planted: Path,
    tmp_path: Path,
    kind: str,
) -> None:
    binary, env = for_everybody
    if os.geteuid() != 0:
        pytest.skip("needs root")
    argv: list[Any] = [binary]
    try:
        if kind == "folder":
            planted.mkdir()
        elif kind == "link":
            (tmp_path / "target").write_bytes(b"precious")
            planted.symlink_to(tmp_path / "target")
        elif kind == "fifo":
            os.mkfifo(planted)
        else:
            planted.write_bytes(b"")
            planted.chmod(0o666)
            os.chown(planted, 12345, 12345)
        if kind == "unreadable":
            planted.chmod(0o600)
            argv = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", binary]
        found = planted.lstat()
        ended = run_process(argv, env=env | QUOTA)
        assert (ended.stdout.split()[-2:], ended.stderr) == (["0", OUT_OF_MEMORY], "")
        uid = 54321 if kind == "unreadable" else 0
        assert Path(f"{planted}@{uid}").stat().st_uid == uid  # its name for this user
        assert os.path.samestat(planted.lstat(), found)
        assert planted.lstat().st_size == found.st_size
    finally:
        if planted.is_dir():
            planted.rmdir()
    if kind == "link":
        assert (tmp_path / "target").read_bytes() == b"precious"


SIZE = ffi.sizeof("struct gl_usage")
OLD = bytearray(craft({}))
OLD[8:12] = (lib.GL_LAYOUT_VERSION + 1).to_bytes(4, "little")
CONTENTS = {
    "empty": b"",
    "garbage": os.urandom(SIZE),
    "ones": b"\xff" * SIZE,
    "short": bytes(craft({})[:1000]),
    "long": bytes(craft({})) + b"x" * 5000,
    "other version": bytes(OLD),
}


@pytest.mark.parametrize("content", sorted(CONTENTS))
def test_a_stale_or_damaged_segment_that_nobody_uses_is_made_anew(
    program: Program, run_process: Any, limited_env: dict[str, str], planted: Path, content: str
) -> None:
    planted.write_bytes(CONTENTS[content])
    ended = run_process([program("manners/refusal")], env=limited_env | SMALL | QUOTA, expect=0)
    assert (ended.stdout.split()[-2:], ended.stderr) == (["0", OUT_OF_MEMORY], "")
    assert planted.stat().st_size == SIZE
    assert stat.S_IMODE(planted.stat().st_mode) & 0o077 == stat.S_IMODE(planted.stat().st_mode) & 0o077


@pytest.mark.parametrize("content", sorted(set(CONTENTS) - {"long", "short"} | {"short", "long"}))
def test_a_damaged_segment_that_somebody_uses_is_refused(
    program: Program, run_process: Any, limited_env: dict[str, str], planted: Path, content: str
) -> None:
    planted.write_bytes(CONTENTS[content])
    with planted.open("r+b") as file:  # held by this process, as a living process of the tenant does
        fcntl.lockf(file, fcntl.LOCK_EX, 1, ffi.offsetof("struct gl_usage", "slot"), os.SEEK_SET)
        ended = run_process([program("manners/refusal")], env=limited_env | SMALL | QUOTA)
    assert_refused(ended, "another version of this library")
    assert planted.read_bytes() == CONTENTS[content]


def test_a_segment_whose_books_are_nonsense_never_means_no_limit(
    program: Program, run_process: Any, limited_env: dict[str, str], planted: Path
) -> None:
    """Right header, wild words behind it, and somebody who uses it."""
    for fill in (0xFF, 0x55):
        raw = craft({})
        head = ffi.sizeof("struct gl_header")
        raw[head:] = bytes([fill]) * (len(raw) - head)
        planted.write_bytes(raw)
        with planted.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, ffi.offsetof("struct gl_usage", "slot"), os.SEEK_SET)
            ended = run_process([program("manners/refusal")], env=limited_env | SMALL | QUOTA, timeout=20)
        assert ended.returncode == 0
        assert ended.stdout.split()[-1] != "0", ended.stdout + ended.stderr


@needs_program("setpriv")
@pytest.mark.parametrize("gid", ["54321", "0"])
def test_any_user_is_held_to_the_quota(
    run_process: Any, for_everybody: tuple[Path, dict[str, str]], planted: Path, gid: str
) -> None:
    binary, env = for_everybody
    if os.geteuid() != 0:
        pytest.skip("needs root")
    try:
        argv = ["setpriv", "--reuid=54321", f"--regid={gid}", "--clear-groups", binary]
        ended = run_process(argv, env=env | QUOTA, expect=0)
        assert (ended.stdout.split()[-2:], ended.stderr) == (["0", OUT_OF_MEMORY], "")
        assert planted.stat().st_uid == 54321
        assert stat.S_IMODE(planted.stat().st_mode) == 0o600
    finally:
        planted.unlink(missing_ok=True)


# ---- what a tenant may try ----


@pytest.mark.parametrize(
    "environ",
    [
        {"GPULIMIT_MEMORY": "4GiB", "GPULIMIT_COMPUTE": "100"},
        {"GPULIMIT_MEMORY": "100%"},
        {
            "GPULIMIT_MEMORY": "64MiB",
            "GPULIMIT_ON_LOSS": "open",
            "GPULIMIT_WAIT": "0",
            "GPULIMIT_LOG": "debug",
        },
        {"GPULIMIT_MEMORY": "64MiB", "GPULIMIT_TEST_POINT": "reserved:1:9", "GPULIMIT_DISABLE": "1"},
        {"CUDA_DEVICE_MEMORY_LIMIT": "4g"},
        {},
    ],
    ids=["raised", "all of the card", "every setting", "what tests set", "another limiter's", "none"],
)
def test_no_setting_of_a_later_process_raises_the_tenant_s_limit(
    program: Program,
    start_process: Any,
    run_process: Any,
    limited_env: dict[str, str],
    environ: dict[str, str],
) -> None:
    first = start_process(
        [program("ways/reach", "-DLINKED"), "linked"], env=limited_env | SMALL | QUOTA, stdin=-1
    )
    assert first.stdout.readline() == "refused\n"  # it has taken 60 of 64 MiB
    ended = run_process([program("manners/refusal")], env=limited_env | SMALL | environ, expect=0)
    assert ended.stdout.split()[-2:] == [OUT_OF_MEMORY, OUT_OF_MEMORY]


def test_a_later_process_may_lower_its_own_limit(
    program: Program, start_process: Any, run_process: Any, limited_env: dict[str, str]
) -> None:
    env = limited_env | SMALL
    first = start_process(
        [program("fork/ways"), "hold", "1"], env=env | QUOTA | {"GPULIMIT_MEMORY": "200MiB"}
    )
    assert first.stdout.readline().split()[1] == "0"
    ended = run_process([program("manners/refusal")], env=env | {"GPULIMIT_MEMORY": "64MiB"}, expect=0)
    assert ended.stdout.split()[-2:] == ["0", OUT_OF_MEMORY]
