# SPDX-License-Identifier: Apache-2.0
"""The built-in workload on the simulated driver, without quota: it does what it is asked, and counts."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import pytest

from limiter.workload.allocations import TAKERS


@pytest.fixture
def load(gpulimit) -> Any:
    def run(*arguments: str, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(
            gpulimit("load", "--json", *arguments, expect=0, **options).stdout
        )
        return answer

    return run


def test_the_gpu_is_kept_busy(load) -> None:
    """Contexts alone on a card get all of it; the rest is start and end of a second."""
    result = load("--seconds", "1", "--kernel", "500us")
    assert result["simulated"] is True
    assert 0.9 < result["gpu_share"] <= 1.01
    assert result["completed"] == result["kernels"] == result["launches"]


def test_launches_are_exact_over_threads_and_streams(load) -> None:
    result = load("--launches", "103", "--kernel", "20us", "--threads", "3", "--streams", "2")
    assert result["launches"] == result["completed"] == 103


def test_graphs_run_all_their_kernels(load) -> None:
    result = load("--launches", "10", "--graph", "7", "--kernel", "20us")
    assert result["kernels"] == result["completed"] == 70


@pytest.mark.parametrize("kind", sorted(TAKERS))
def test_memory_of_every_kind_can_be_taken(load, kind: str) -> None:
    result = load("--launches", "5", "--kernel", "20us", "--memory", "1GiB", "--alloc", kind)
    assert 1 << 30 <= result["memory_bytes"] < 1.1 * (1 << 30)


@pytest.mark.parametrize("kind", sorted(set(TAKERS) - {"managed"}))  # which may exceed the card
def test_memory_that_is_not_there_is_a_clear_error(gpulimit, kind: str) -> None:
    done = gpulimit("load", "--launches", "1", "--memory", "100GiB", "--alloc", kind, expect=1)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr
    assert "Traceback" not in done.stderr


def test_touching_memory_takes_gpu_time(load) -> None:
    assert load("--launches", "20", "--memory", "1GiB", "--touch")["seconds"] > 0.003


def test_bursts_are_timed(load) -> None:
    bursts = load("--seconds", "1", "--burst", "2ms/20ms", "--kernel", "200us")["bursts"]
    assert 30 <= bursts["count"] <= 52
    assert 2.0 <= bursts["p50_ms"] < 10.0


def test_growing_stops_at_the_card_s_end_and_work_goes_on(load) -> None:
    result = load("--seconds", "1", "--grow", "30GiB", "--kernel", "1ms")
    assert result["memory_bytes"] == 60 << 30
    assert result["memory_refused"] >= 1
    assert result["gpu_share"] > 0.8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_its_result(start_process, sim_env, number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "limiter", "load", "--json", "--seconds", "50"]
    process = start_process(argv, env=sim_env)
    time.sleep(1.5)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert result["completed"] == result["kernels"] > 0


def test_idle_holds_memory_and_launches_nothing(load) -> None:
    result = load("--idle", "--memory", "1GiB", "--seconds", "0.3")
    assert (result["launches"], result["memory_bytes"]) == (0, 1 << 30)


def test_a_device_that_is_not_there_is_a_clear_error(gpulimit) -> None:
    done = gpulimit("load", "--device", "7", expect=1)
    assert "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE" in done.stderr
