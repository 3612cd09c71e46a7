# SPDX-License-Identifier: Apache-2.0
"""The library under the address, undefined-behaviour and thread sanitizers, in plain programs.

The sanitizer's runtime is preloaded before the library. The programs are those of the other tests, which
check what they do as well; here they are short.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import LONG, ROOT, Program

KINDS = {"address": "address,undefined", "thread": "thread"}
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}
SETTINGS = {
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=66",  # what a program leaves at its end is its own affair
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=66",
    "TSAN_OPTIONS": "die_after_fork=0:exitcode=66",
}
QUOTA = {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "64MiB"}
LIMITED = {"GPULIMIT_COMPUTE": "30"}
CASES: list[tuple[str, tuple[str, ...], int, dict[str, str]]] = [
    *(
        ("memory_paths", (path,), 0, {})
        for path in ("plain", "arrays", "async", "pools", "vmm", "graphs", "contexts", "no_context", "forked")
    ),
    ("memory_churn", ("4", "500", "3"), 0, {}),
    ("ways/first_calls", ("12", "8"), 0, {}),
    ("ways/twins", (), 0, LIMITED),
    ("manners/keep_errno", (), 0, LIMITED),
    ("manners/refusal", (), 0, {}),
    ("manners/leave", ("exit",), 3, LIMITED),
    ("manners/leave", ("return",), 6, LIMITED),
    ("capture/differ", ("busy",), 0, {"GPULIMIT_COMPUTE": "60"}),
    ("capture/beside", ("0", "1"), 0, LIMITED),
    ("capture/beside", ("1", "1"), 0, LIMITED),
    ("kills/churn", ("3", "3000", "1"), 0, {}),
    ("memory_churn", ("3", "40", "3"), 0, {"GPULIMIT_MEMORY_WAIT": "1"}),
    ("fork/storm", ("30",), 0, {}),
    ("compute/load", ("seconds=1", "threads=3", "streams=2", "kernel=100000"), 0, LIMITED),
    ("compute/load", ("seconds=1", "threads=3", "own=1", "kernel=100000"), 0, LIMITED),
    ("compute/load", ("seconds=1", "graph=10", "kernel=20000", "contexts=2", "threads=2"), 0, LIMITED),
    ("devices/limits", (), 0, {"GPULIMIT_SIM_PROFILE": "mixed", "GPULIMIT_MEMORY": "0=1GiB,*=2GiB"}),
]

Instrumented = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="session")
def instrumented(built: Any) -> Instrumented:
    """Return the sanitizer's runtime and the library built with it; skip where the compiler has none."""

    def build(kind: str) -> tuple[Path, Path]:
        name = RUNTIMES[kind]
        found = subprocess.run(
            ["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        if found == name:
            pytest.skip(f"SKIPPED: this compiler has no {name}; install its sanitizer runtime")
        folder = built.root / f"shim-{kind}"
        make(ROOT / "csrc", f"OUT={folder}", f"SANITIZE={KINDS[kind]}")
        return Path(found), folder / "libgpulimit.so"

    return build


def make(directory: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["make", "-s", "-j2", "-C", str(directory), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "arguments", "status", "environ"), CASES)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_library_is_clean(
    program: Program,
    run_process: Any,
    limited_env: dict[str, str],
    instrumented: Instrumented,
    kind: str,
    name: str,
    arguments: tuple[str, ...],
    status: int,
    environ: dict[str, str],
) -> None:
    runtime, library = instrumented(kind)
    env = limited_env | QUOTA | SETTINGS | environ | {"LD_PRELOAD": f"{runtime} {library}"}
    ended = run_process([program(name), *arguments], env=env, timeout=60)
    assert "Sanitizer" not in ended.stderr and "runtime error" not in ended.stderr, ended.stderr
    assert ended.returncode == status, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_python_program_is_clean(
    run_process: Any, limited_env: dict[str, str], instrumented: Instrumented
) -> None:
    """The look-up hook answers while the sanitizer's runtime is still starting."""
    runtime, library = instrumented("address")
    python = shutil.which("python3") or "python3"
    env = limited_env | QUOTA | SETTINGS | {"LD_PRELOAD": f"{runtime} {library}"}
    source = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    ended = run_process([python, "-c", source], env=env, timeout=60, expect=0)
    assert (ended.stdout, ended.stderr) == ("0\n", "")


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.timeout(300)
def test_the_library_is_instrumented(instrumented: Instrumented, kind: str) -> None:
    """Guards the tests above."""
    _, library = instrumented(kind)
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    ).stdout
    assert f"__{kind[0]}san_" in symbols


SIM_PROGRAMS = [
    "capture_graph",
    "contexts",
    "events",
    "memory_granules",
    "shared_memory",
    "host_function",
    "waiting",
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", sorted(KINDS) if LONG else ["address"])
@pytest.mark.parametrize("name", SIM_PROGRAMS)
def test_the_simulated_driver_is_clean(
    built: Any,
    compile_c: Any,
    run_process: Any,
    sim_env: dict[str, str],
    instrumented: Instrumented,
    kind: str,
    name: str,
) -> None:
    runtime, _ = instrumented(kind)
    folder = built.root / f"sim-{kind}"
    make(ROOT / "csrc" / "sim", f"OUT={folder}", f"CFLAGS=-O1 -g -fsanitize={KINDS[kind]}")
    binary = compile_c(
        ROOT / "tests" / "sim_driver" / f"{name}.c",
        *("-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-variable", "-pthread"),
        *("-L", str(built.sim), "-Wl,--no-as-needed", "-lcuda", "-lnvidia-ml", "-ldl"),
        name=f"sim-driver-{name}",
    )
    env = sim_env | SETTINGS | {"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": str(runtime)}
    env |= {"GPULIMIT_SIM_GPUS": "2"}
    ended = run_process([binary], env=env, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
