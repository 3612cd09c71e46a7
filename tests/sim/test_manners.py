# SPDX-License-Identifier: Apache-2.0
"""A guest in somebody else's process: who does not use CUDA does not notice, and nobody is ever unlimited."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from limiter._native import ffi, lib

from limiter import segment

from ..conftest import needs_program
from ..segments import craft
from .conftest import Program, wait_until

REFUSED, OUT_OF_MEMORY = "800", "2"
QUOTAS: dict[str, dict[str, str]] = {
    "absent": {},
    "zero": {"GPULIMIT_MEMORY": "0"},
    "valid": {"GPULIMIT_MEMORY": "64MiB", "GPULIMIT_COMPUTE": "50"},
    "nonsense": {"GPULIMIT_MEMORY": "4GX"},
}
PYTHON = sys.executable
SMALL = {"GPULIMIT_SIM_PROFILE": "small"}


def outcome(run_process: Any, argv: list[Any], env: Mapping[str, str]) -> tuple[int, str, str]:
    ended = run_process(argv, env=env)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter and write to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


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


@pytest.mark.parametrize("quota", sorted(QUOTAS))
@pytest.mark.parametrize(
    "argv",
    [
        ["/bin/true"],
        ["/bin/false"],
        ["/bin/sh", "-c", "echo out; echo err >&2; exit 7"],
        ["/bin/cat", "/no/such/file"],
        [PYTHON, "-c", "pass"],
        [PYTHON, "-c", "import ctypes, threading; ctypes.CDLL(None).getpid(); raise SystemExit(3)"],
    ],
    ids=lambda argv: Path(argv[0]).name,
)
def test_programs_without_cuda_run_as_ever(
    run_process: Any, sim_env: dict[str, str], limited_env: dict[str, str], argv: list[str], quota: str
) -> None:
    environ = QUOTAS[quota]
    assert outcome(run_process, argv, limited_env | environ) == outcome(run_process, argv, sim_env | environ)


@pytest.mark.parametrize("quota", sorted(QUOTAS))
def test_a_cuda_program_that_only_shows_its_help_runs_as_ever(
    program: Program, run_process: Any, limited_env: dict[str, str], quota: str
) -> None:
    ended = outcome(run_process, [program("manners/look"), "--help"], limited_env | QUOTAS[quota])
    assert ended == (0, "usage: look\n", "")


@pytest.mark.parametrize("quota", sorted(QUOTAS))
def test_a_static_program_runs_as_ever(
    compile_c: Any, run_process: Any, limited_env: dict[str, str], quota: str
) -> None:
    source = '#include <stdio.h>\nint main(void) { puts("static"); return 9; }\n'
    binary = compile_c(source, "-static", name="static")
    assert outcome(run_process, [binary], limited_env | QUOTAS[quota]) == (9, "static\n", "")


def test_a_setuid_program_runs_as_ever(
    compile_c: Any, run_process: Any, built: Any, limited_env: dict[str, str], open_folder: Path
) -> None:
    """The loader preloads nothing into such a program; it must not complain either."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    source = """
    #include <stdio.h>
    #include <unistd.h>
    int main(void) { printf("%d %d\\n", getuid(), geteuid()); }
    """
    binary = Path(shutil.copy(compile_c(source, name="setuid"), open_folder))
    binary.chmod(0o4755)
    if (
        subprocess.run(["setpriv", "--reuid=54321", binary], capture_output=True, check=True).stdout
        != b"54321 0\n"
    ):
        pytest.skip("setuid programs have no effect here")
    argv = ["setpriv", "--reuid=54321", binary]
    assert outcome(run_process, argv, limited_env | QUOTAS["valid"]) == (0, "54321 0\n", "")


def seen(run_process: Any, binary: Path, env: Mapping[str, str], *arguments: str) -> list[str]:
    ended = run_process([binary, *arguments], env=env, expect=0)
    assert ended.stderr == ""
    return sorted(ended.stdout.splitlines())


def test_loading_changes_nothing_in_the_process(
    program: Program, run_process: Any, built: Any, sim_env: dict[str, str], limited_env: dict[str, str]
) -> None:
    """No thread, no descriptor, no handler, no mapping but the library's own."""
    binary = program("manners/look")
    free = seen(run_process, binary, sim_env | QUOTAS["valid"])
    limited = seen(run_process, binary, limited_env | QUOTAS["valid"])
    assert [line for line in limited if "libgpulimit.so" not in line] == free
    assert {line for line in limited if line not in free} == {f"map {built.library}"}


@pytest.mark.parametrize("work", ["cuda", "nvml"])
def test_working_leaves_signals_threads_and_limits_alone(
    program: Program,
    run_process: Any,
    sim_env: dict[str, str],
    limited_env: dict[str, str],
    tenant: str,
    work: str,
) -> None:
    """The one thing more is the tenant's segment."""
    binary = program("manners/look")
    free = seen(run_process, binary, sim_env | SMALL | QUOTAS["valid"], work)
    limited = seen(run_process, binary, limited_env | SMALL | QUOTAS["valid"], work)
    own = ("libgpulimit.so", f"/dev/shm/gpulimit.u.{tenant}")
    # Measuring asks NVML, which is loaded for that.
    others = [x for x in limited if not any(o in x for o in own) and "libnvidia-ml" not in x]
    assert [x for x in others if not x.startswith(("map ", "fd "))] == [
        x for x in free if not x.startswith(("map ", "fd "))
    ]
    assert {x for x in others if x.startswith(("map ", "fd "))} == {
        x for x in free if x.startswith(("map ", "fd ")) and "libnvidia-ml" not in x
    }


@needs_program("strace")
def test_loading_makes_no_system_call_of_its_own(
    run_process: Any, program: Program, sim_env: dict[str, str], limited_env: dict[str, str], tmp_path: Path
) -> None:
    """Beyond what the loader does for any library that it maps."""
    loading = {
        "openat",
        "read",
        "pread64",
        "fstat",
        "newfstatat",
        "mmap",
        "mprotect",
        "munmap",
        "close",
        "brk",
    }
    loading |= {"access", "lseek", "readlink", "getcwd"}
    binary = program("manners/look")
    traces = []
    for number, env in enumerate((sim_env, limited_env)):
        trace = tmp_path / f"trace-{number}"
        preload = f"LD_PRELOAD={env.get('LD_PRELOAD', '')}"
        ended = run_process(["strace", "-f", "-o", trace, "-E", preload, binary, "--help"], env=sim_env)
        if ended.returncode != 0:
            pytest.skip(f"strace cannot trace here: {ended.stderr.strip()[:200]}")
        traces.append(re.findall(r"^\d+ +(\w+)\((.*)", trace.read_text(), re.MULTILINE))
    free, limited = ([call for call, _ in trace if call not in loading] for trace in traces)
    assert limited == free
    opened = [set(re.findall(r'"([^"]*)"', " ".join(a for c, a in t if c == "openat"))) for t in traces]
    assert opened[1] - opened[0] == {limited_env["LD_PRELOAD"]}


def test_errno_is_the_caller_s(
    program: Program, run_process: Any, sim_env: dict[str, str], limited_env: dict[str, str]
) -> None:
    binary = program("manners/keep_errno")
    free = run_process([binary], env=sim_env | SMALL, expect=0).stdout.splitlines()
    for environ in (QUOTAS["valid"], QUOTAS["absent"]):
        limited = run_process([binary], env=limited_env | SMALL | environ, expect=0).stdout.splitlines()
        assert {x for x in limited if "): " in x or x.startswith("launch")} <= set(free)
        assert [x for x in limited if " = " in x] == [x for x in free if " = " in x]


def test_nothing_is_exported_but_hooks_and_look_ups(built: Any) -> None:
    out = subprocess.run(
        ["nm", "-D", "--defined-only", built.library], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in out.splitlines()}
    table = (built.lib / "hooks.def").read_text()
    hooks = set(re.findall(r"^(?:CU|NVML)_HOOK\((\w+),", table, re.MULTILINE))
    assert exported == hooks | {"dlsym", "dlvsym"}


@pytest.mark.parametrize("level", ["warn", "info", "debug"])
def test_lines_are_written_only_when_asked_for_and_have_a_prefix(
    program: Program, run_process: Any, limited_env: dict[str, str], level: str
) -> None:
    binary = program("manners/refusal")
    quiet = run_process([binary], env=limited_env | SMALL | QUOTAS["valid"], expect=0)
    assert quiet.stderr == ""
    loud = run_process(
        [binary], env=limited_env | SMALL | QUOTAS["valid"] | {"GPULIMIT_LOG": level}, expect=0
    )
    lines = loud.stderr.splitlines()
    assert lines and all(re.match(r"gpulimit\[\d+\] (warning|info|debug): ", line) for line in lines)
    assert loud.stdout == quiet.stdout
    assert len(lines) < 20


@pytest.mark.parametrize("quota", ["nonsense", "zero"])
def test_a_quota_that_cannot_be_read_refuses_every_call_with_one_line(
    program: Program, run_process: Any, limited_env: dict[str, str], quota: str
) -> None:
    ended = run_process([program("manners/refusal")], env=limited_env | SMALL | QUOTAS[quota], expect=0)
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


WAYS_OUT = ["return", "exit", "quick", "_exit", "abort", "segv", "term", "thread", "atexit"]


@pytest.mark.parametrize("way", WAYS_OUT)
def test_leaving_in_any_way_with_busy_threads(
    program: Program,
    run_process: Any,
    sim_env: dict[str, str],
    limited_env: dict[str, str],
    books: Any,
    way: str,
) -> None:
    binary = program("manners/leave")
    environ = SMALL | {"GPULIMIT_MEMORY": "64MiB", "GPULIMIT_COMPUTE": "20"}
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    start = time.monotonic()
    ended = outcome(run_process, [binary, way], limited_env | environ)
    assert time.monotonic() - start < 5
    assert ended == outcome(run_process, [binary, way], sim_env | environ)
    assert not any(process.is_alive for process in books().processes)
    # Whoever comes next has the whole quota.
    assert run_process([program("manners/refusal")], env=limited_env | environ, expect=0).stdout.split()[
        -2:
    ] == [
        "0",
        OUT_OF_MEMORY,
    ]


@pytest.mark.parametrize(
    ("end", "status"),
    [("os._exit(5)", 5), ("sys.exit(3)", 3), ("raise ValueError('x')", 1), ("os.abort()", -6), ("pass", 0)],
)
def test_a_python_program_leaves_as_ever(
    run_process: Any, sim_env: dict[str, str], limited_env: dict[str, str], end: str, status: int
) -> None:
    source = f"""
import ctypes, os, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
def busy():
    while True:
        cuda.cuMemFree_v2(ctypes.c_uint64(1))
threading.Thread(target=busy, daemon=True).start()
{end}
"""
    limited = run_process([PYTHON, "-c", source], env=limited_env | SMALL | QUOTAS["valid"])
    free = run_process([PYTHON, "-c", source], env=sim_env | SMALL)
    assert (limited.returncode, limited.stdout, limited.stderr) == (status, free.stdout, free.stderr)
    assert free.returncode == status


def test_without_descriptors_to_spare_the_process_is_refused_and_not_unlimited(
    program: Program, run_process: Any, limited_env: dict[str, str]
) -> None:
    env = limited_env | SMALL | QUOTAS["valid"]
    assert_refused(run_process([program("manners/refusal"), "nofile"], env=env), "Too many open files")


def test_without_descriptors_a_process_does_not_leave_its_default_tenant(
    program: Program, run_process: Any, start_process: Any, limited_env: dict[str, str]
) -> None:
    """Neither with a quota of its own, which would be another tenant's, nor with none."""
    env = {k: v for k, v in limited_env.items() if k != "GPULIMIT_TENANT"} | SMALL
    for environ in (QUOTAS["valid"], {}):
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
READ_ONLY_ROOT = 'mount --bind / /mnt; mount -o remount,ro,bind /mnt; mount --move /mnt /; exec "$0" "$@"'


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
        return run_process(argv, env=env | SMALL | QUOTAS["valid"] | environ)

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
        ended = run_process(argv, env=env | QUOTAS["valid"])
        assert_refused(ended, str(planted))
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
    ended = run_process([program("manners/refusal")], env=limited_env | SMALL | QUOTAS["valid"], expect=0)
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
        ended = run_process([program("manners/refusal")], env=limited_env | SMALL | QUOTAS["valid"])
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
            ended = run_process(
                [program("manners/refusal")], env=limited_env | SMALL | QUOTAS["valid"], timeout=20
            )
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
        ended = run_process(argv, env=env | QUOTAS["valid"], expect=0)
        assert (ended.stdout.split()[-2:], ended.stderr) == (["0", OUT_OF_MEMORY], "")
        assert planted.stat().st_uid == 54321
        assert stat.S_IMODE(planted.stat().st_mode) == 0o600
    finally:
        planted.unlink(missing_ok=True)


def test_a_name_for_memory_allocation_of_its_own_preloaded_too_stays_in_force(
    compile_c: Any, run_process: Any, program: Program, limited_env: dict[str, str]
) -> None:
    """As with a preloaded malloc: both are in force, in either order."""
    source = """
    #include <stddef.h>
    #include <unistd.h>
    extern void *__libc_malloc(size_t);
    static int told;
    void *malloc(size_t n) { if (!told++) write(2, "other malloc\\n", 13); return __libc_malloc(n); }
    """
    other = compile_c(source, "-shared", "-fPIC", "-D_GNU_SOURCE", "-Wno-unused-result", name="malloc.so")
    for preload in ((str(other), limited_env["LD_PRELOAD"]), (limited_env["LD_PRELOAD"], str(other))):
        env = limited_env | SMALL | QUOTAS["valid"] | {"LD_PRELOAD": ":".join(preload)}
        ended = run_process([program("manners/refusal")], env=env, expect=0)
        assert (ended.stdout.split()[-2:], ended.stderr) == (["0", OUT_OF_MEMORY], "other malloc\n")


def test_closing_all_descriptors_of_a_child_leaves_the_parent_s_place(
    run_process: Any, start_process: Any, limited_env: dict[str, str], books: Any
) -> None:
    """As daemons and subprocess modules do between fork and exec."""
    source = """
import ctypes, os, subprocess, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
if os.fork() == 0:
    os.closerange(3, 4096)
    os._exit(0)
os.wait()
subprocess.run(["/bin/true"], close_fds=True, check=True)
print("ready", flush=True)
sys.stdin.read()
"""
    process = start_process([PYTHON, "-c", source], env=limited_env | SMALL | QUOTAS["valid"], stdin=-1)
    assert process.stdout.readline() == "ready\n"
    usage = wait_until(books)
    assert [p.is_alive for p in usage.processes] == [True]
    assert usage.devices[0].used_bytes == 1 << 20
