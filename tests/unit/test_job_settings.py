# SPDX-License-Identifier: Apache-2.0
"""What `gpulimit load --ranks` and `--await` are asked; nothing here needs a GPU."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from limiter.cli import build_parser, load_command
from limiter.commands.load import job_settings_of, refuse_others
from limiter.errors import UsageError
from limiter.workload.job_result import describe_job, job_summary
from limiter.workload.job_settings import JobSettings
from limiter.workload.settings import BATCHES_QUEUED, MAX_BATCH


def parsed(*arguments: str) -> argparse.Namespace:
    return build_parser("load", load_command("load")).parse_args(list(arguments))


def settings(*arguments: str) -> JobSettings:
    options = parsed(*arguments)
    refuse_others(options)
    made = job_settings_of(options)
    made.check()
    return made


def test_ranks_are_on_cards_side_by_side() -> None:
    assert [settings("--ranks", "3", "--device", "2").device_of(rank) for rank in range(3)] == [2, 3, 4]
    on_one = settings("--ranks", "3", "--device", "2", "--ranks-on-one-gpu")
    assert [on_one.device_of(rank) for rank in range(3)] == [2, 2, 2]


def test_a_rank_has_variables_of_its_own() -> None:
    made = settings("--ranks", "2", "--rank-env", "1:A=b", "--rank-env", "1:C=d=e", "--rank-env", "0:A=")
    assert [made.environ_of(rank) for rank in range(2)] == [{"A": ""}, {"A": "b", "C": "d=e"}]


def test_ranks_hear_of_their_settings_but_not_of_other_ranks_variables() -> None:
    made = settings("--ranks", "2", "--rank-env", "1:SECRET=x", "--kernel", "1ms")
    heard = JobSettings.of_data(made.as_data())
    assert (heard.kernel_ns, heard.ranks, heard.environ) == (1_000_000, 2, {})


@pytest.mark.parametrize("kernel_ns", [1, 1_000, 500_000, 90_000_000])
@pytest.mark.parametrize("kernels", [1, 8, 300])
def test_the_queue_of_a_rank_is_bounded(kernel_ns: int, kernels: int) -> None:
    made = JobSettings(ranks=2, kernel_ns=kernel_ns, kernels=kernels)
    assert made.batch >= 1
    assert made.batch == 1 or made.batch * made.step_ns * BATCHES_QUEUED <= made.ahead_ns
    assert made.batch == 1 or made.batch * (made.kernels + 2) <= MAX_BATCH


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--ranks", "2", "--rank-env", "2:A=b"), "--rank-env names rank 2 of 2"),
        (("--ranks", "2", "--pipeline", "--collective", "none"), "exclude each other"),
        (("--ranks", "2", "--steps", "3", "--seconds", "1"), "exclude each other"),
        (("--ranks", "2", "--await", "3"), "--await means nothing with --ranks"),
        (("--ranks", "2", "--touch"), "--touch means nothing with --ranks"),
        (("--await", "2", "--seconds", "3"), "--seconds means nothing with --await"),
        (("--collective-every", "3"), "--collective-every means nothing without --ranks"),
        (("--bail-out", "3s"), "--bail-out means nothing without"),
    ],
)
def test_options_that_mean_nothing_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        settings(*arguments)


@pytest.mark.parametrize(
    "arguments", [(), ("--ranks", "2", "--seconds", "3"), ("--await", "2"), ("--touch",)]
)
def test_options_that_belong_together_are_taken(arguments: tuple[str, ...]) -> None:
    refuse_others(parsed(*arguments, "--kernel", "1ms", "--sim", "--json", "--device", "1"))


@pytest.mark.parametrize("wrong", ["x:A=b", "1A=b", "1:A", "1:=b", "-1:A=b"])
def test_a_variable_of_no_rank_is_refused(wrong: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        parsed("--ranks", "2", f"--rank-env={wrong}")
    assert "is not RANK:NAME=VALUE" in capsys.readouterr().err


def test_a_job_is_as_fast_as_its_slowest_rank() -> None:
    common = {"device": "a card", "simulated": True, "steps": 10, "seconds": 1.0, "ordinal": 0}
    ranks = [
        common | {"rank": n, "steps_per_s": rate, "first_step_s": n + 0.5, "longest_gap_s": 0.01}
        for n, rate in enumerate((10.0, 9.5))
    ]
    data = job_summary(JobSettings(ranks=2), ranks)
    assert (data["steps_per_s"], data["first_step_s"]) == (9.5, 1.5)
    assert "rank 1 on GPU 0: 9.5 a second, longest wait 10.0 ms" in describe_job(data)
