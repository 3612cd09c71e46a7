# SPDX-License-Identifier: Apache-2.0
"""Jobs whose kernels wait for each other, on simulated cards without quota: as fast as arithmetic says.

Jobs and neighbours queue so much ahead that this host may stall for a while without the cards noticing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import wait_until

AHEAD = ("--ahead", "100ms")
TIMEOUT = ("--collective-timeout", "1s")
Load = Callable[..., dict[str, Any]]
Start = Callable[..., Any]


@pytest.fixture
def cards(sim_env: dict[str, str]) -> dict[str, str]:
    """Environment of programs on a machine with eight cards."""
    return sim_env | {"GPULIMIT_SIM_GPUS": "8"}


@pytest.fixture
def load(gpulimit: Any, cards: dict[str, str]) -> Load:
    """Run `gpulimit load --json` to its end; return its result."""

    def run(*arguments: str, **environ: str) -> dict[str, Any]:
        done = gpulimit("load", "--json", *arguments, env=cards | environ, expect=0, timeout=60)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


@pytest.fixture
def start(start_process: Any, cards: dict[str, str]) -> Start:
    """Start `gpulimit load` in the background."""

    def begin(*arguments: str, **environ: str) -> Any:
        argv = [sys.executable, "-m", "limiter", "load", "--json", *arguments]
        return start_process(argv, env=cards | environ)

    return begin


def saturate(start: Start, device: int) -> Any:
    """Keep one card busy for the rest of the test."""
    return start("--ranks", "1", "--collective", "none", "--device", str(device), "--seconds", "50", *AHEAD)


def ranks_of(process: Any) -> list[int]:
    """Return the pids of a job's rank processes."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(word) for word in children.read_text(encoding="ascii").split()]


def ignores_interrupts(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return bool(int(status.split("SigIgn:")[1].split()[0], 16) & 1 << signal.SIGINT - 1)


def stepping(result: dict[str, Any], per_s: float, tolerance: float = 0.03) -> None:
    """Each rank made so many steps a second, and all made the same ones."""
    assert result["steps_per_s"] == pytest.approx(per_s, rel=tolerance)
    assert {rank["steps"] for rank in result["per_rank"]} == {result["steps"]}


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_job_alone_takes_its_kernels_and_the_transfer(load: Load, ranks: int) -> None:
    step = ("--kernel", "500us", "--collective-every", "3", "--collective-time", "500us")
    result = load("--ranks", str(ranks), *step, "--seconds", "2", *AHEAD)
    stepping(result, 500)
    assert [rank["ordinal"] for rank in result["per_rank"]] == list(range(ranks))


def test_ranks_that_do_not_wait_are_not_slowed_by_each_other(load: Load, start: Start) -> None:
    saturate(start, 1)
    time.sleep(1)
    result = load("--ranks", "2", "--collective", "none", "--kernel", "1ms", "--steps", "700", *AHEAD)
    rates = [rank["steps_per_s"] for rank in result["per_rank"]]
    assert rates == pytest.approx([1000, 500], rel=0.05)


def test_a_pipeline_is_as_fast_as_its_slowest_rank(load: Load, start: Start) -> None:
    assert load("--ranks", "4", "--pipeline", "--kernel", "1ms", "--seconds", "1.5", *AHEAD)[
        "steps_per_s"
    ] == pytest.approx(1000, rel=0.05)
    saturate(start, 2)
    time.sleep(1)
    result = load("--ranks", "4", "--pipeline", "--kernel", "1ms", "--steps", "700", *AHEAD)
    rates = [rank["steps_per_s"] for rank in result["per_rank"]]
    assert rates[2:] == pytest.approx([500, 500], rel=0.05), "the last waits for the third's flags"
    assert rates[0] == pytest.approx(1000, rel=0.05), "the first waits for nobody"


def test_a_neighbour_of_one_rank_halves_the_job(load: Load, start: Start) -> None:
    """Data moves only while both ranks have their cards: half of the time."""
    saturate(start, 1)
    time.sleep(1)
    step = ("--kernel", "50us", "--collective-time", "450us")
    stepping(load("--ranks", "2", *step, "--seconds", "2", *AHEAD), 1000, 0.05)


def test_neighbours_of_both_ranks_leave_it_a_quarter(load: Load, start: Start) -> None:
    """Each rank has its card half of the time, and the cards do not keep step."""
    for device in (0, 1):
        saturate(start, device)
    time.sleep(1)
    step = ("--kernel", "10us", "--collective-time", "490us")
    stepping(load("--ranks", "2", *step, "--seconds", "3", *AHEAD), 500, 0.08)


def test_ranks_on_one_card_take_turns_with_it(load: Load) -> None:
    """A rank that has arrived spins to the end of its slice, the other arrives in its own: a step a slice."""
    stepping(load("--ranks", "2", "--ranks-on-one-gpu", "--seconds", "2", *AHEAD), 500, 0.05)


def test_the_library_without_a_limit_costs_the_job_nothing(load: Load, limited_env: dict[str, str]) -> None:
    step = ("--kernel", "500us", "--collective-every", "3", "--collective-time", "500us")
    preload = {"LD_PRELOAD": limited_env["LD_PRELOAD"]}
    stepping(load("--ranks", "2", *step, "--seconds", "2", *AHEAD, **preload), 500)


def test_a_kernel_that_waits_for_a_later_launch_gets_it(load: Load) -> None:
    result = load("--await", "20")
    assert (result["rounds"], result["bail_outs"]) == (20, 0)
    assert result["longest_round_s"] < 0.5


def test_a_kernel_that_waits_in_vain_is_counted(load: Load) -> None:
    result = load("--await", "3", "--kernel", "300ms", "--bail-out", "100ms")
    assert result["bail_outs"] == 3
    assert 0.1 <= result["longest_round_s"] < 0.3


@pytest.mark.parametrize("ranks_on", [(), ("--ranks-on-one-gpu",)])
def test_a_job_that_loses_a_rank_ends_and_names_it(start: Start, ranks_on: tuple[str, ...]) -> None:
    job = start("--ranks", "3", "--seconds", "50", *TIMEOUT, *ranks_on)
    pids = wait_until(lambda: ranks if len(ranks := ranks_of(job)) == 3 else None)
    time.sleep(2)
    os.kill(pids[1], signal.SIGKILL)
    killed_at = time.monotonic()
    out, err = job.communicate(timeout=20)
    assert time.monotonic() - killed_at < 10
    assert (job.returncode, out) == (1, "")
    assert "rank 1 was killed by SIGKILL; rank 0: step " in err or "SIGKILL; rank 2: step " in err, err


def test_a_rank_killed_while_it_spins_leaves_its_card_to_others(start: Start, load: Load) -> None:
    job = start("--ranks", "2", "--seconds", "50", "--collective-timeout", "40s")
    pids = wait_until(lambda: ranks if len(ranks := ranks_of(job)) == 2 else None)
    time.sleep(2)
    os.kill(pids[1], signal.SIGKILL)
    shares = [load("--device", str(device), "--seconds", "1")["gpu_share"] for device in (0, 1)]
    assert shares[0] < 0.65, "rank 0 spins, and has half of its card for it"
    assert shares[1] > 0.85
    os.kill(pids[0], signal.SIGKILL)
    assert load("--seconds", "1")["gpu_share"] > 0.85


def test_a_rank_that_cannot_start_is_named_at_once(gpulimit: Any, cards: dict[str, str]) -> None:
    done = gpulimit("load", "--ranks", "2", "--device", "7", env=cards, expect=1)
    assert "rank 1: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE" in done.stderr


def test_a_rank_has_variables_of_its_own(load: Load) -> None:
    one_each = ("--ranks-on-one-gpu", "--rank-env", "0:CUDA_VISIBLE_DEVICES=3", "--rank-env")
    result = load(
        "--ranks", "2", *one_each, "1:CUDA_VISIBLE_DEVICES=5", "--steps", "500", "--kernel", "500us"
    )
    assert result["steps_per_s"] > 1200, "on two cards: on one they would make 500"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_job_with_its_result(start: Start, number: signal.Signals) -> None:
    """The terminal's Ctrl-C goes to the ranks, too."""
    job = start("--ranks", "2", "--seconds", "50")
    wait_until(lambda: len(ranks := ranks_of(job)) == 2 and all(map(ignores_interrupts, ranks)))
    time.sleep(1.5)
    if number == signal.SIGINT:
        os.killpg(job.pid, number)
    else:
        job.send_signal(number)
    out, err = job.communicate(timeout=20)
    assert job.returncode == 0, err
    result = json.loads(out)
    assert {rank["steps"] for rank in result["per_rank"]} == {result["steps"]}
    assert result["steps"] > 100
