# SPDX-License-Identifier: Apache-2.0
"""The commands on a real card: what the simulated driver cannot vouch for.  Skipped where there is none."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from limiter.workload.allocations import TAKERS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180), pytest.mark.alone]


@pytest.fixture
def gpulimit(run_process, card_env) -> Any:
    """Run a command with the real driver."""
    return lambda *arguments, **options: run_process(
        [sys.executable, "-m", "limiter", *arguments], env=card_env, **options
    )


def test_the_machine_is_healthy(gpulimit) -> None:
    found = json.loads(gpulimit("doctor", "--json", expect=0).stdout)
    assert {c["name"]: c["level"] for c in found["checks"]}["quota"] == "ok"


def test_kernels_take_the_time_that_they_are_asked_to(gpulimit) -> None:
    result = json.loads(gpulimit("load", "--json", "--seconds", "2", expect=0).stdout)
    assert result["completed"] == result["kernels"]
    assert 0.95 < result["gpu_share"] <= 1.01


@pytest.mark.parametrize("kind", sorted(TAKERS))
def test_memory_of_every_kind_can_be_taken(gpulimit, kind: str) -> None:
    arguments = ("--launches", "10", "--memory", "1GiB", "--alloc", kind)
    result = json.loads(gpulimit("load", "--json", *arguments, expect=0).stdout)
    assert result["memory_bytes"] >= 1 << 30


def test_a_kernel_that_waits_for_a_later_launch_gets_it(gpulimit) -> None:
    result = json.loads(gpulimit("load", "--json", "--await", "50", expect=0).stdout)
    assert (result["rounds"], result["bail_outs"]) == (50, 0)


def test_a_kernel_that_waits_in_vain_gives_up(gpulimit) -> None:
    rounds = ("--await", "3", "--kernel", "300ms", "--bail-out", "100ms")
    result = json.loads(gpulimit("load", "--json", *rounds, expect=0).stdout)
    assert result["bail_outs"] == 3


@pytest.mark.parametrize("mode", [(), ("--pipeline",)])
def test_ranks_in_processes_of_their_own_wait_for_each_other(gpulimit, mode: tuple[str, ...]) -> None:
    job = ("--ranks", "2", "--ranks-on-one-gpu", "--seconds", "2", *mode)
    result = json.loads(gpulimit("load", "--json", *job, expect=0).stdout)
    assert {rank["steps"] for rank in result["per_rank"]} == {result["steps"]}
    assert result["steps_per_s"] > 20


def test_the_demo_keeps_its_promises(gpulimit) -> None:
    done = gpulimit("demo", timeout=120, expect=0)
    assert done.stdout.rstrip().endswith("everything as promised")
