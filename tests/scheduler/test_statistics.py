# SPDX-License-Identifier: Apache-2.0
"""What is counted of an arbiter's decisions."""

from __future__ import annotations

import pytest

from hypervisor.model import TenantName
from hypervisor.scheduler.statistics import Histogram, SchedulerStats
from hypervisor.scheduler.types import MS, Decision, Grant, SchedParams, TenantUsage

A, B = TenantName("a"), TenantName("b")
FREE = Grant(1 << 40, 0, is_shared=False)


def step(turns, at_ms, turn, *, a=None, b=None, terms=None, grants=None) -> None:
    seen = {name: figures for name, figures in ((A, a), (B, b)) if figures is not None}
    decision = Decision({n: (grants or {}).get(n, FREE) for n in seen}, turn, 0)
    turns.record(at_ms * MS, seen, {n: (terms or {}).get(n, SchedParams()) for n in seen}, decision)


@pytest.mark.parametrize(
    ("spent_ms", "at_ms", "waiting", "terms", "reason"),
    [
        (10, 12, 1, SchedParams(), "quantum"),
        (2, 20, 1, SchedParams(), "quantum"),
        (2, 4, 0, SchedParams(), "idle"),
        (2, 4, 1, SchedParams(is_suspended=True), "suspended"),
        (2, 4, 1, SchedParams(limit_percent=30), "limit"),
        (2, 4, 1, SchedParams(), "preempted"),
    ],
)
def test_a_turn_ends_for_a_reason(spent_ms, at_ms, waiting, terms, reason) -> None:
    turns = SchedulerStats(10 * MS)
    step(turns, 0, A, a=TenantUsage(0, 0, 1))
    step(turns, at_ms, None, a=TenantUsage(spent_ms * MS, 0, waiting), terms={A: terms})
    tally = turns.counters()
    assert tally.dropped == {reason: 1}
    assert tally.rounds == 2
    assert tally.turn.sum_ns == at_ms * MS


def test_a_holder_that_has_gone_has_left() -> None:
    turns = SchedulerStats(10 * MS)
    step(turns, 0, A, a=TenantUsage(0), b=TenantUsage(0))
    step(turns, 3, B, b=TenantUsage(0))
    tally = turns.counters()
    assert tally.dropped == {"left": 1}
    assert sum(tally.release.counts) == 0


def test_release_lasts_until_the_queue_is_empty() -> None:
    turns = SchedulerStats(10 * MS)
    step(turns, 0, A, a=TenantUsage(0, 5 * MS, 1))
    step(turns, 10, None, a=TenantUsage(10 * MS, 4 * MS, 1))
    step(turns, 12, B, a=TenantUsage(12 * MS, 2 * MS, 1), b=TenantUsage(0))
    step(turns, 14, B, a=TenantUsage(14 * MS, 0, 1), b=TenantUsage(0))
    release = turns.counters().release
    assert (sum(release.counts), release.sum_ns) == (1, 4 * MS)


def test_a_wait_lasts_from_held_back_to_granted() -> None:
    turns = SchedulerStats(10 * MS)
    held = {A: Grant(MS, 0, is_shared=True)}
    step(turns, 0, None, a=TenantUsage(MS, 0, 1), grants=held)
    step(turns, 5, None, a=TenantUsage(MS, 0, 1), grants=held)
    step(turns, 30, A, a=TenantUsage(MS, 0, 1), grants={A: Grant(9 * MS, 0, is_shared=True)})
    wait = turns.counters().grant_wait
    assert (sum(wait.counts), wait.sum_ns) == (1, 30 * MS)


def test_a_tally_does_not_change_any_more() -> None:
    turns = SchedulerStats(10 * MS)
    before = turns.counters()
    step(turns, 0, A, a=TenantUsage(0))
    step(turns, 30, None, a=TenantUsage(0))
    assert before.rounds == sum(before.turn.counts) == 0


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum_ns == 62
