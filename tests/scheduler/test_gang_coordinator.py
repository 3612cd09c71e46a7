# SPDX-License-Identifier: Apache-2.0
"""The coordinator of gangs without a model of cards: which tenants it sees as gangs, and what it counts."""

from __future__ import annotations

import pytest

from hypervisor.model import GpuUuid, TenantName
from hypervisor.scheduler.gang_coordinator import GangCoordinator
from hypervisor.scheduler.gang_statistics import GangStats
from hypervisor.scheduler.gangs import GangKey, Phase, gang_of
from hypervisor.scheduler.scheduler import Scheduler
from hypervisor.scheduler.types import (
    GANG_OFF,
    MS,
    Decision,
    SchedParams,
    SchedulerConfig,
    TenantUsage,
)

CONFIG = SchedulerConfig()
JOB, ONE = TenantName("job"), TenantName("one")
CARDS = [GpuUuid("GPU-0"), GpuUuid("GPU-1")]
WANTS = TenantUsage(50 * MS, 0, 1, is_in_gang=True)
IDLE = TenantUsage(0, 0, 0, processes=0)
Figures = dict[TenantName, TenantUsage]


class Bench:
    """Two schedulers and a coordinator, stepped by hand."""

    def __init__(self) -> None:
        self.coordinator = GangCoordinator(CONFIG)
        self.schedulers = {gpu: Scheduler(CONFIG) for gpu in CARDS}
        self.now_ns = 1000 * MS
        self.next_ns = 0

    def step(self, *seen: Figures, by_ns: int = MS, **terms: SchedParams) -> list[Decision]:
        self.now_ns += by_ns
        present = {gpu: figures for gpu, figures in zip(CARDS, seen, strict=True) if figures}
        of = {name: terms.get(name, SchedParams()) for figures in seen for name in figures}
        for gpu, figures in present.items():
            self.schedulers[gpu].observe(self.now_ns, figures, of)
        there = {gpu: self.schedulers[gpu] for gpu in present}
        self.next_ns = self.coordinator.step(self.now_ns, there, set(CARDS) - present.keys())
        return [there[gpu].decide(self.now_ns) for gpu in present]


def busy(spent_ms: int, *, is_in_gang: bool = False, outstanding_ns: int = 0) -> TenantUsage:
    return TenantUsage(spent_ms * MS, outstanding_ns, 1, is_in_gang=is_in_gang)


def begin(bench: Bench) -> list[Decision]:
    """Bring the gang into its turn beside a single on the first card."""
    decisions: list[Decision] = []
    for number in range(40):
        both = busy(min(number, 4) * 3, is_in_gang=True)
        decisions = bench.step({JOB: both, ONE: busy(number)}, {JOB: both})
        if all(decision.gang_turn for decision in decisions):
            return decisions
    pytest.fail("the gang has had no turn")


@pytest.mark.parametrize(
    ("terms", "seen", "expected"),
    [
        (SchedParams(), WANTS, GangKey("job", is_named=False)),
        (SchedParams(), WANTS._replace(is_in_gang=False), None),
        (SchedParams(gang="team/x"), WANTS, GangKey("team/x", is_named=True)),
        (SchedParams(gang="team/x"), IDLE, None),
        (SchedParams(gang=GANG_OFF), WANTS, None),
    ],
)
def test_a_tenant_is_in_the_gang_that_its_terms_or_its_library_say(terms, seen, expected) -> None:
    assert gang_of(JOB, terms, seen) == expected


def test_a_tenant_that_names_its_gang_as_another_tenant_is_called_is_in_another_gang() -> None:
    named = gang_of(ONE, SchedParams(gang="job"), WANTS)
    assert named != gang_of(JOB, SchedParams(), WANTS)


def test_a_turn_has_one_start_on_all_cards_after_the_longest_queue() -> None:
    bench = Bench()
    queued = TenantUsage(7 * MS, 3 * MS, 1)
    decisions: list[Decision] = []
    for number in range(40):
        both = busy(min(number, 4) * 3, is_in_gang=True)
        one = queued._replace(spent_ns=number * 4 * MS, queue_end_ns=bench.now_ns + 4 * MS)
        decisions = bench.step({JOB: both, ONE: one}, {JOB: both})
        if all(decision.gang_turn for decision in decisions):
            break
    starts = {decision.grants[JOB].start_ns for decision in decisions}
    assert len(starts) == 1
    assert 2 * MS < starts.pop() - bench.now_ns <= 3 * MS
    assert decisions[0].grants[ONE].granted_ns <= 160 * MS
    assert decisions[0].turn is None


def test_a_card_that_its_gang_has_left_is_free_at_the_next_step() -> None:
    bench = Bench()
    begin(bench)
    gang = bench.coordinator.gangs[GangKey("job", is_named=False)]
    assert gang.phase is Phase.RUNNING
    (decision,) = bench.step({ONE: busy(60)}, {})
    assert not bench.coordinator.gangs
    assert not decision.gang_turn
    assert bench.coordinator.stats.counters().ended == {"left": 1}


def test_a_gang_whose_last_neighbour_leaves_is_not_held_any_more() -> None:
    bench = Bench()
    begin(bench)
    both = busy(200, is_in_gang=True)
    decisions = bench.step({JOB: both}, {JOB: both})
    assert not any(decision.grants[JOB].is_shared for decision in decisions)
    assert bench.coordinator.stats.counters().ended == {"alone": 1}


def test_the_gpu_time_that_a_gang_spends_after_its_turn_counts() -> None:
    bench = Bench()
    begin(bench)
    gang = bench.coordinator.gangs[GangKey("job", is_named=False)]
    both = busy(300, is_in_gang=True)
    for _ in range(60):
        both = both._replace(spent_ns=both.spent_ns + 2 * MS)
        bench.step({JOB: both, ONE: busy(60)}, {JOB: both}, by_ns=2 * MS)
        if gang.phase is Phase.WAITING:
            break
    assert gang.phase is Phase.WAITING
    before = gang.seats[CARDS[0]].vruntime_ns
    both = both._replace(spent_ns=both.spent_ns + 30 * MS)
    bench.step({JOB: both, ONE: busy(60)}, {JOB: both})
    assert gang.seats[CARDS[0]].vruntime_ns >= before + 30 * MS


@pytest.mark.parametrize("nonsense", [(1 << 64) - 1, 0, 1 << 40])
def test_nonsense_in_a_gang_s_books_keeps_no_turn(nonsense: int) -> None:
    """It says that ever so much is unfinished, and has used any time: its neighbour still gets its turns."""
    bench = Bench()
    got = 0
    for number in range(600):
        liar = TenantUsage(nonsense if number % 2 else 7, (1 << 64) - 1, 1, (1 << 64) - 1, is_in_gang=True)
        decisions = bench.step({JOB: liar, ONE: busy(number)}, {JOB: liar}, by_ns=2 * MS)
        got += decisions[0].grants[ONE].granted_ns > number * MS
    assert got >= 200


def test_turns_are_counted_by_their_length_and_the_reason_of_their_end() -> None:
    stats = GangStats()
    stats.record_turn(100 * MS, "quantum")
    stats.record_turn(7 * MS, "idle")
    stats.record_turn(103 * MS, "quantum")
    stats.record_drain(3 * MS)
    found = stats.counters()
    assert found.ended == {"quantum": 2, "idle": 1}
    assert found.turn.sum_ns == 210 * MS
    assert sum(found.turn.counts) == 3
    assert found.drain.sum_ns == 3 * MS
    stats.record_turn(MS, "idle")
    assert found.ended == {"quantum": 2, "idle": 1}
