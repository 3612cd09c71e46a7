# SPDX-License-Identifier: Apache-2.0
"""Looks that cost much CPU come less often."""

from __future__ import annotations

from hypervisor.top.cpu_budget import MAX_INTERVAL_S, MAX_SHARE, CpuBudget


def intervals(costs_s: list[float], usual_s: float = 1.0, keys_s: float = 0.0) -> list[float]:
    """Return the interval after each look, of looks that cost so much; after each second, keys cost some."""
    budget, used_s, found = CpuBudget(), 0.5, []
    for number, cost_s in enumerate([0.0, *costs_s]):
        typed_s = keys_s if number % 2 else 0.0
        used_s += cost_s + typed_s
        found.append(budget.interval_s(usual_s, used_s, is_disturbed=typed_s > 0))
    return found


def test_cheap_looks_come_as_usual() -> None:
    assert set(intervals([0.015] * 10)) == {1.0}


def test_looks_that_cost_much_come_less_often_and_never_stop() -> None:
    last = intervals([0.1] * 6)[-1]
    assert abs(last - 0.1 / MAX_SHARE) < 1e-9 and 0.1 / last <= 0.02
    assert intervals([5.0] * 6)[-1] == MAX_INTERVAL_S


def test_keys_in_between_cost_no_look() -> None:
    assert set(intervals([0.01] * 12, keys_s=0.5)) == {1.0}


def test_looks_that_cost_more_now_and_then_stay_within_the_bound() -> None:
    last = intervals([0.01, 0.01, 0.07] * 4)[-3:]
    assert min(last) == max(last) > 1.0 and 0.03 / last[0] <= 0.02


def test_looks_come_as_usual_again_when_they_cost_less() -> None:
    assert intervals([0.1] * 6 + [0.001] * 3)[-1] == 1.0
