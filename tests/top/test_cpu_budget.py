# SPDX-License-Identifier: Apache-2.0
"""Looks that cost much CPU come less often."""

from __future__ import annotations

from hypervisor.top.cpu_budget import MAX_INTERVAL_S, MAX_SHARE, CpuBudget


def intervals(costs_s: list[float], usual_s: float = 1.0) -> list[float]:
    """Return the interval after each look, of looks that cost so much."""
    budget, used_s, found = CpuBudget(), 0.5, []
    for cost_s in [0.0, *costs_s]:
        used_s += cost_s
        found.append(budget.interval_s(usual_s, used_s))
    return found


def test_cheap_looks_come_as_usual() -> None:
    assert set(intervals([0.015] * 10)) == {1.0}


def test_looks_that_cost_much_come_less_often_and_never_stop() -> None:
    last = intervals([0.1] * 6)[-1]
    assert abs(last - 0.1 / MAX_SHARE) < 1e-9 and 0.1 / last <= 0.02
    assert intervals([5.0] * 6)[-1] == MAX_INTERVAL_S


def test_keys_in_between_cost_no_look() -> None:
    assert set(intervals([0.01, 0.5, 0.5, 0.01, 0.5, 0.5, 0.01])) == {1.0}


def test_looks_come_as_usual_again_when_they_cost_less() -> None:
    assert intervals([0.1] * 6 + [0.001])[-1] == 1.0
