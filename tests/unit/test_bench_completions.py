# SPDX-License-Identifier: Apache-2.0
"""What completed steps tell of a rate."""

from __future__ import annotations

import pytest

from bench.step_rate import done_at, lag_ms, of_neighbours, rate_between

# 100 steps a second for a second, a pause of 0.1 s, then 200 a second.
TIMES = [(n / 10, 10 * n) for n in range(11)] + [(1.1 + n / 10, 100 + 20 * n) for n in range(6)]


def test_between_two_completions_it_is_in_proportion() -> None:
    assert done_at(TIMES, 0.25) == pytest.approx(25)
    assert done_at(TIMES, -1) == 0
    assert done_at(TIMES, 99) == 200


def test_rates_are_those_of_the_window() -> None:
    assert rate_between(TIMES, 0.15, 0.85) == pytest.approx(100)
    assert rate_between(TIMES, 1.2, 1.6) == pytest.approx(200)


def test_a_pause_before_the_new_rate_is_the_lag() -> None:
    assert lag_ms(TIMES, 1.0, 0.5, 200) == pytest.approx(100)
    assert lag_ms(TIMES, 1.1, 0.4, 200) == pytest.approx(0, abs=1e-6)


def test_a_host_that_slows_down_steadily_does_not_show() -> None:
    alone = [100.0, 90.0, 80.0]
    assert of_neighbours([95.0, 85.0], alone) == pytest.approx([1.0, 1.0])
    assert of_neighbours([47.5, 85.0], alone) == pytest.approx([0.5, 1.0])
