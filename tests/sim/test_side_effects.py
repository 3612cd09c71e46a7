# SPDX-License-Identifier: Apache-2.0
"""A guest in somebody else's process: programs run, and end, as they would without the library."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ..conftest import needs_program
from .conftest import Program, wait_until

OUT_OF_MEMORY = "2"
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
