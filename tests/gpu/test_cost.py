# SPDX-License-Identifier: Apache-2.0
"""What the library costs programs that notice it least: starting, and taking and freeing memory.

Figures vary by 15 % from process to process on a shared host, so both sides run by turns and the best of each
counts, or both ways are measured in one process (bench/call_overhead.c); what is asserted is coarse.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180), pytest.mark.alone]

LOOP = Path(__file__).resolve().parents[2] / "bench" / "call_overhead.c"
Best = Callable[[Callable[[dict[str, str]], float], int], tuple[float, float]]


@pytest.fixture
def best(card_env: dict[str, str], quota_env: dict[str, str]) -> Best:
    """Measure without and with the library by turns; return the least of each."""

    def measure(one: Callable[[dict[str, str]], float], rounds: int) -> tuple[float, float]:
        pairs = [(one(card_env), one(quota_env)) for _ in range(rounds)]
        return min(p[0] for p in pairs), min(p[1] for p in pairs)

    return measure


@pytest.fixture
def seconds_of(run_process: Any) -> Callable[..., float]:
    """Run a program; return how long it took."""

    def measure(command: list[str], env: dict[str, str]) -> float:
        started = time.perf_counter()
        run_process(command, env=env, expect=0)
        return time.perf_counter() - started

    return measure


def test_importing_torch(best: Best, seconds_of: Callable[..., float], note: Any) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("not installed: torch")
    without, quota = best(lambda env: seconds_of([sys.executable, "-c", "import torch"], env), 3)
    note("seconds", f"{without:.2f} without, {quota:.2f} with")
    assert quota < 1.2 * without + 0.2


def test_a_program_without_gpu(best: Best, seconds_of: Callable[..., float], note: Any) -> None:
    for name, command in {"python": [sys.executable, "-S", "-c", "pass"], "true": ["true"]}.items():
        without, quota = best(lambda env, command=command: seconds_of(command, env), 10)
        note(f"{name}_ms", f"{1000 * without:.2f} without, {1000 * quota:.2f} with")
        assert quota < 1.2 * without + 0.01


@pytest.mark.parametrize(("what", "most_ns"), [("malloc", 5000), ("launch", 500)])
def test_one_call(
    what: str, most_ns: float, compile_c: Any, run_process: Any, quota_env: dict[str, str], note: Any
) -> None:
    loop = compile_c(LOOP, "-O2", "-l:libcuda.so.1", name="loop")
    rounds = [
        [float(x) for x in run_process([loop, what], env=quota_env, expect=0).stdout.split()]
        for _ in range(3)
    ]
    through, direct, difference = min(rounds, key=lambda r: r[2])
    note("ns_a_call", f"{direct:.0f} into the driver, {through:.0f} through the library, {difference:+.0f}")
    assert difference < most_ns
