# SPDX-License-Identifier: Apache-2.0
"""What the workload is asked, and how it adds up; nothing here needs a GPU."""

from __future__ import annotations

import re

import pytest

from limiter.cli import build_parser, load_command
from limiter.commands.load import settings_of
from limiter.errors import UsageError
from limiter.workload.kernels import PTX, SPIN, TOUCH
from limiter.workload.result import Result, describe, percentile, summary
from limiter.workload.settings import BATCH_NS, TOUCH_BLOCKS, Burst, WorkloadSettings


def settings(*arguments: str) -> WorkloadSettings:
    return settings_of(build_parser("load", load_command("load")).parse_args(list(arguments)))


def test_without_bounds_it_ends_after_some_seconds() -> None:
    assert settings().seconds == 5.0


def test_a_number_of_launches_is_bound_enough() -> None:
    assert settings("--launches", "10").seconds == 0.0


@pytest.mark.parametrize("kernel_ns", [1, 1_000, 500_000, 4_000_000, 90_000_000])
def test_the_queue_is_bounded_in_time(kernel_ns: int) -> None:
    batch = WorkloadSettings(kernel_ns=kernel_ns).batch
    assert batch >= 1
    assert batch == 1 or batch * kernel_ns <= BATCH_NS


def test_a_touch_keeps_the_cards_memory_busy() -> None:
    assert settings().grid_blocks == 1
    assert settings("--touch", "--memory", "1GiB").grid_blocks == TOUCH_BLOCKS
    assert settings("--touch", "--memory", "1GiB", "--blocks", "7").grid_blocks == 7


def test_a_burst_is_one_batch() -> None:
    assert settings("--burst", "3ms/20ms", "--kernel", "150us").batch == 20


@pytest.mark.parametrize(("launches", "threads"), [(10, 3), (1, 4), (8, 2)])
def test_launches_are_divided_without_loss(launches: int, threads: int) -> None:
    asked = WorkloadSettings(launches=launches, threads=threads)
    assert sum(asked.share_of_launches(n) or 0 for n in range(threads)) == launches


def test_no_bound_is_not_zero_launches() -> None:
    assert WorkloadSettings().share_of_launches(0) is None


@pytest.mark.parametrize(
    "wrong",
    [
        WorkloadSettings(touch=True),
        WorkloadSettings(touch=True, memory_bytes=1, alloc="array"),
        WorkloadSettings(burst=Burst(1, 2), threads=2),
        WorkloadSettings(burst=Burst(3, 2)),
    ],
)
def test_contradictions_are_refused(wrong: WorkloadSettings) -> None:
    with pytest.raises(UsageError):
        wrong.check()


@pytest.mark.parametrize(
    "arguments", [["--kernel", "fast"], ["--memory", "1GX"], ["--streams", "0"], ["--burst", "3ms"]]
)
def test_bad_values_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        settings(*arguments)
    assert end.value.code == 2
    assert arguments[1] in capsys.readouterr().err


def test_the_module_runs_on_old_drivers_and_cards() -> None:
    assert PTX.startswith(b".version 6.0\n.target sm_50\n")
    assert re.findall(rb"\.visible \.entry (\w+)\(", PTX) == [SPIN, TOUCH]


def test_a_summary_relates_gpu_time_to_wall_time() -> None:
    result = Result(
        device="GPU", simulated=True, seconds=2.0, launches=1000, kernels=20_000, completed=20_000
    )
    data = summary(WorkloadSettings(kernel_ns=50_000, graph_kernels=20), result)
    assert data["gpu_seconds"] == 1.0
    assert data["gpu_share"] == 0.5
    assert data["rate_per_s"] == 500.0
    assert "50.0% of one GPU" in describe(data)


def test_lost_kernels_are_not_passed_over() -> None:
    result = Result(device="GPU", simulated=True, seconds=1.0, launches=10, kernels=10, completed=9)
    assert "WARNING: 9 of 10" in describe(summary(WorkloadSettings(), result))


def test_percentiles() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([], 50)) == (51.0, 100.0, 0.0)
