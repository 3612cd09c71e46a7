# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests that run small C programs of tests/c/ under the library on the simulated driver."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from limiter import segment

from ..conftest import remove_segments
from .machine import LONG as LONG
from .machine import QUOTA, Machine
from .sharing import PROGRAM, Member

SOURCES = Path(__file__).resolve().parent.parent / "c"
ROOT = SOURCES.parent.parent
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function")
DRIVER = ("-lcuda", "-lnvidia-ml")
Program = Callable[..., Path]


def stamp(*folders: Path) -> str:
    """Return a number that changes with any header a program may include."""
    return str(max(p.stat().st_mtime_ns for folder in folders for p in folder.rglob("*.h")))


@pytest.fixture(scope="session")
def program(built: Any, compile_c: Any) -> Program:
    """Build tests/c/NAME.c, linked with the simulated driver unless `link=False`."""

    def build(name: str, *flags: str, link: bool = True, compiler: str = "cc") -> Path:
        libraries = ("-Wl,--no-as-needed", "-L", str(built.sim), *DRIVER, "-Wl,--as-needed") if link else ()
        binary: Path = compile_c(
            SOURCES / f"{name}.c",
            f"-DSTAMP={stamp(SOURCES)}",
            f"-I{SOURCES}",
            "-D_GNU_SOURCE",
            *WARNINGS,
            *flags,
            *libraries,
            *("-ldl", "-pthread") * (compiler == "cc"),
            name=name.replace("/", "-"),
            compiler=compiler,
        )
        return binary

    return build


@pytest.fixture(scope="session")
def points_library(built: Any) -> Path:
    """The library with the places compiled in where tests kill or stop a process."""
    folder: Path = built.root / "shim-points"
    done = subprocess.run(
        ["make", "-s", "-j2", "-C", str(ROOT / "csrc"), f"OUT={folder}", "TEST_POINTS=1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "libgpulimit.so"


@pytest.fixture
def machine(
    program: Program, start_process: Any, limited_env: dict[str, str], tenant: str, tmp_path: Path
) -> Iterator[Callable[..., Machine]]:
    """Make machines, each with a tenant of its own: the nth call's is not the first's."""
    made: list[Machine] = []

    def make(**environ: str) -> Machine:
        name = f"{tenant}-{len(made)}"
        env = (
            limited_env
            | QUOTA
            | {"GPULIMIT_TENANT": name, "GPULIMIT_SIM_STATE": str(tmp_path / name)}
            | environ
        )
        made.append(Machine(env, name, start_process, program("compute/load"), program("compute/card_time")))
        return made[-1]

    yield make
    remove_segments(tenant)


@pytest.fixture
def member(limited_env: dict[str, str], start_process: Any) -> Callable[..., Member]:
    """Start members of the test's tenant, of 1 GiB on the exact small card; keywords: their environment."""

    def begin(**environ: str) -> Member:
        env = limited_env | {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "1GiB"} | environ
        made = Member(start_process([sys.executable, PROGRAM], env=env, stdin=-1))
        assert made("start") == 0
        return made

    return begin


ASK_CARD = """
import json, pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps([pynvml.nvmlDeviceGetMemoryInfo(h).used for h in handles]))
"""


@pytest.fixture
def card_used(sim_env: dict[str, str]) -> Callable[..., list[int]]:
    """Ask the simulated cards, without the library, how many bytes are in use on each (NVML's order)."""
    pytest.importorskip("pynvml")

    def ask(env: Mapping[str, str] | None = None) -> list[int]:
        asked = {k: v for k, v in (env or sim_env).items() if k not in ("LD_PRELOAD", "GPULIMIT_SIM_FAULTS")}
        done = subprocess.run(
            [sys.executable, "-c", ASK_CARD],
            env=asked,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        used: list[int] = json.loads(done.stdout)
        return used

    return ask


@pytest.fixture
def books(tenant: str) -> Callable[[], segment.Usage]:
    """Read the test's tenant."""
    return lambda: segment.read(tenant)


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Return what the condition says as soon as it is true; fail after a while."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            value = condition()
        except FileNotFoundError:
            value = None
        if value:
            return value
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
