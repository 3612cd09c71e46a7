# SPDX-License-Identifier: Apache-2.0
"""How many different GPUs a guest may claim."""

from __future__ import annotations

from hypervisor.guests.cardinality import KEPT_S, MAX_CARDS, SeriesLimiter
from hypervisor.metrics.snapshot import GuestGpu


def gpu(number: int, *, index: int = 0, name: str = "A100") -> GuestGpu:
    return GuestGpu(index, f"GPU-{number}", name, {"running_processes": 0})


def test_other_gpus_each_time_are_let_in_up_to_a_number_and_known_ones_go_on() -> None:
    roster = SeriesLimiter()
    shown = {one for n in range(1000) for one in (g.uuid for g in roster.admitted([gpu(0), gpu(n)], n))}
    assert len(shown) == MAX_CARDS
    assert roster.admitted([gpu(0), gpu(5000)], 1000) == (gpu(0),)


def test_other_names_and_indexes_count_as_well() -> None:
    roster = SeriesLimiter()
    claims = [gpu(0, index=n % 10, name=f"name {n}") for n in range(1000)]
    assert sum(len(roster.admitted([one], 0)) for one in claims) == MAX_CARDS


def test_room_comes_back_after_an_hour() -> None:
    roster = SeriesLimiter()
    for n in range(MAX_CARDS):
        roster.admitted([gpu(n)], 0)
    assert roster.admitted([gpu(500)], KEPT_S) == ()
    assert roster.admitted([gpu(500)], KEPT_S + 1) == (gpu(500),)


def test_a_gpu_that_is_always_there_is_never_forgotten() -> None:
    roster = SeriesLimiter()
    for now_s in range(0, 100_000, 3):
        assert roster.admitted([gpu(1)], now_s) == (gpu(1),)
