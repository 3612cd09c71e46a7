# SPDX-License-Identifier: Apache-2.0
"""Jobs on simulated cards under a limit, without a daemon: P percent of the time is P percent of speed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from limiter import segment

from .machine import held

Job = Any
STEPS_PER_S = 500
"""Of a job alone: a step is a kernel of 1 ms and a transfer of 1 ms."""
KERNELS = ("--kernel", "1ms", "--collective-time", "1ms", "--collective-timeout", "20s")
ONE_MS = ("--kernel", "1ms")
SETTLED_S = 1.0
"""What a bucket holds at the start is used up by then."""


@pytest.fixture
def job(gpulimit: Any, limited_env: dict[str, str]) -> Job:
    """Run `gpulimit load --json` under a limit on eight cards; return its result."""

    def run(limit: int, *arguments: str, **environ: str) -> dict[str, Any]:
        env = limited_env | {"GPULIMIT_SIM_GPUS": "8", "GPULIMIT_COMPUTE": str(limit)} | environ
        done = gpulimit("load", "--json", *arguments, env=env, expect=0, timeout=100)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


def speed(samples: Sequence[tuple[float, int]]) -> float:
    """Return steps per second, from SETTLED_S after the first sample on."""
    settled = [sample for sample in samples if sample[0] >= samples[0][0] + SETTLED_S]
    (begin_s, begin), (end_s, end) = settled[0], settled[-1]
    return (end - begin) / (end_s - begin_s)


def percent_of_alone(result: dict[str, Any]) -> list[float]:
    return [100 * speed(rank["samples"]) / STEPS_PER_S for rank in result["per_rank"]]


@pytest.mark.parametrize("limit", [20, 50, 80])
def test_a_job_runs_at_its_limit(job: Job, limit: int) -> None:
    def measure() -> list[tuple[float, float]]:
        result = job(limit, "--ranks", "2", "--seconds", "5", *KERNELS)
        return [(percent, limit) for percent in percent_of_alone(result)]

    held(measure, points=4)


def test_a_job_on_eight_cards_is_held_to_its_limit(job: Job) -> None:
    """Its windows end with ranks that are far apart: on fewer cores than ranks it gets less."""
    alone, result = (job(limit, "--ranks", "8", "--seconds", "5", *KERNELS) for limit in (100, 50))
    for free, under in zip(alone["per_rank"], result["per_rank"], strict=True):
        assert 0.25 < speed(under["samples"]) / speed(free["samples"]) < 0.55


@pytest.mark.parametrize(("ranks", "limit"), [(2, 1), (8, 1), (8, 10), (2, 100)])
def test_a_job_never_hangs(job: Job, ranks: int, limit: int) -> None:
    result = job(limit, "--ranks", str(ranks), "--steps", "60", *KERNELS)
    assert result["steps"] >= 60


def test_a_pipeline_runs_at_its_limit(job: Job) -> None:
    alone = job(100, "--ranks", "2", "--pipeline", "--seconds", "3", "--kernel", "1ms")

    def measure() -> list[tuple[float, float]]:
        result = job(50, "--ranks", "2", "--pipeline", "--seconds", "5", "--kernel", "1ms")
        rate = speed(alone["per_rank"][0]["samples"])
        return [(100 * speed(rank["samples"]) / rate, 50) for rank in result["per_rank"]]

    held(measure, points=5)


def test_processes_that_wait_for_each_other_on_one_card_run_at_their_limit(job: Job) -> None:
    alone = job(100, "--ranks", "2", "--ranks-on-one-gpu", "--seconds", "3", *KERNELS)

    def measure() -> list[tuple[float, float]]:
        result = job(40, "--ranks", "2", "--ranks-on-one-gpu", "--seconds", "5", *KERNELS)
        rate = speed(alone["per_rank"][0]["samples"])
        return [(100 * speed(rank["samples"]) / rate, 40) for rank in result["per_rank"]]

    held(measure, points=4)


def test_cards_that_do_not_wait_for_each_other_are_limited_one_by_one(job: Job, tenant: str) -> None:
    result = job(50, "--ranks", "2", "--collective", "none", "--seconds", "3", "--kernel", "1ms")
    assert all(40 < 100 * speed(rank["samples"]) / 1000 < 60 for rank in result["per_rank"])
    assert segment.read(tenant).gang.entries == ()


def test_a_tenant_that_is_said_to_be_no_gang_is_none(job: Job, tenant: str) -> None:
    job(50, "--ranks", "2", "--steps", "20", *KERNELS, GPULIMIT_GANG="off")
    assert segment.read(tenant).gang.entries == ()


def test_a_gang_by_name_is_limited_as_one_from_the_start(job: Job, tenant: str) -> None:
    result = job(50, "--ranks", "2", "--collective", "none", "--seconds", "3", *ONE_MS, GPULIMIT_GANG="team")
    assert segment.read(tenant).gang.entries == (0, 1)
    assert all(40 < 100 * speed(rank["samples"]) / 1000 < 60 for rank in result["per_rank"])


@pytest.mark.parametrize("limit", [1, 10, 50])
def test_a_launch_that_a_running_kernel_waits_for_is_never_held_for_long(job: Job, limit: int) -> None:
    rounds = 8 if limit == 1 else 25
    result = job(limit, "--await", str(rounds))
    assert result["bail_outs"] == 0
    assert result["longest_round_s"] < 2.0  # its own work's debt; the bail-out is after 2 s


def test_launches_let_go_are_counted_and_the_wait_is_forgiven(job: Job, tenant: str) -> None:
    job(10, "--await", "25")
    gang = segment.read(tenant).gang
    assert gang.released > 0
    assert gang.forgiven_ns > 0


def test_the_first_steps_are_not_punished(job: Job) -> None:
    """Time to the first step at 20 percent is at most three times that without a limit."""
    began = time.monotonic()
    job(100, "--ranks", "2", "--steps", "1", *KERNELS)
    free_s = time.monotonic() - began
    began = time.monotonic()
    job(20, "--ranks", "2", "--steps", "1", *KERNELS)
    assert time.monotonic() - began < 3 * free_s
