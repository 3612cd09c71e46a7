# SPDX-License-Identifier: Apache-2.0
"""GPU time that programs used until their end, and streams of other contexts, on the real driver.

bench/exit_accounting.py measures the first in full; here is one burst of each kind.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from limiter import segment

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
LINK = ("-l:libcuda.so.1", "-l:libnvidia-ml.so.1", "-ldl")
FIRST_NS = 2_000_000
"""Of the kernel behind which the others of a burst queue up (bench/exit_accounting.c)."""
NEAR = 0.01


@pytest.fixture
def link(built: Any) -> tuple[str, ...]:
    """How to link with the driver that the tests run on."""
    from .conftest import REHEARSAL

    return ("-L", str(built.sim), *LINK) if REHEARSAL else LINK


def test_streams_and_events_of_another_context_are_as_on_the_simulated_driver(
    compile_c: Any, link: Any, run_process: Any, card_env: dict[str, str]
) -> None:
    source = ROOT / "tests" / "sim_driver" / "stream_contexts.c"
    binary = compile_c(source, "-Wno-unused-function", *link, name="stream-contexts")
    ended = run_process([binary], env=card_env, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.alone
@pytest.mark.parametrize("end", ["return", "fast", "destroy"])
@pytest.mark.parametrize(("kernel_ns", "count"), [(50_000, 2000), (500_000, 20), (15_000_000, 40)])
def test_a_burst_is_charged_to_its_end(
    compile_c: Any,
    link: Any,
    start_process: Any,
    quota_env: dict[str, str],
    tenant: str,
    note: Any,
    kernel_ns: int,
    count: int,
    end: str,
) -> None:
    binary = compile_c(ROOT / "bench" / "exit_accounting.c", *link, name="exit-accounting")
    process = start_process([binary, str(kernel_ns), str(count), "sync", end], env=quota_env, stdin=-1)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    books = segment.path_of(tenant)
    fd = os.open(books, os.O_RDONLY)
    before = segment.read_open(fd, books).devices[0].used_ns
    out, err = process.communicate("\n", timeout=60)
    used = segment.read_open(fd, books).devices[0].used_ns - before
    os.close(fd)
    assert process.returncode == 0, err
    true_ns = int(out.split()[0])
    note("ms", f"{true_ns / 1e6:.2f} by events, {used / 1e6:.2f} charged")
    assert true_ns >= FIRST_NS + kernel_ns * count
    assert used == pytest.approx(true_ns, rel=NEAR)
