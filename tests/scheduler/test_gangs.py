# SPDX-License-Identifier: Apache-2.0
"""Turns of gangs on a model of several cards, in virtual time: jobs whose ranks wait for each other.

A job's speed is over that of the job alone; a single tenant's is its fraction of its card.
"""

from __future__ import annotations

import random

import pytest

from hypervisor.scheduler.gangs import GangKey, Phase
from hypervisor.scheduler.types import GANG_OFF, SchedParams
from tests.scheduler.gang_model import Job, Node, Tenant, measure, synced, training
from tests.scheduler.gpu_model import MS, US, S, bursty, latencies, saturating, shallow

NEAR = 0.02
ALONE = 1 / (2 * MS)
"""Steps per ns of `training` alone."""


def speeds(node: Node, jobs: list[Job], singles: list[Tenant], run_s: int = 4) -> list[float]:
    """Return the speed of each job over alone, then the fraction of each single."""
    of_jobs, of_singles = measure(node, jobs, singles, run_ns=run_s * S)
    return [steps / ALONE for steps in of_jobs] + of_singles


def singles_on(node: Node, cards: list[int], **terms: int) -> list[Tenant]:
    return [node.add(card, f"single{card}", saturating(), **terms) for card in cards]


def turns_of(node: Node, name: str) -> list[list[tuple[int, int]]]:
    """Return begin and end of the gang's turns on each card, as the cards' grants open and close."""
    found: list[list[tuple[int, int]]] = []
    for card in node.cards:
        turns: list[tuple[int, int]] = []
        since: int | None = None
        for at_ns, decision in card.decisions:
            has = name in decision.gang_turn
            if has and since is None:
                since = max(at_ns, decision.grants[name].start_ns)  # type: ignore[index]
            elif not has and since is not None:
                turns.append((since, at_ns))
                since = None
        found.append(turns)
    return found


# ---- shares ----


@pytest.mark.parametrize("percent", [25, 50, 75])
def test_a_job_beside_a_single_on_each_card_gets_its_part(percent: int) -> None:
    node = Node(2)
    job = node.add_job([0, 1], "job", training, request_percent=percent, weight=percent)
    singles = singles_on(node, [0, 1], request_percent=100 - percent, weight=100 - percent)
    got = speeds(node, [job], singles, run_s=8)
    assert got[0] == pytest.approx(percent / 100, abs=NEAR)
    assert got[1:] == pytest.approx([1 - percent / 100] * 2, abs=NEAR)
    if percent == 50:
        assert min(got) >= 0.48


def test_turned_card_by_card_the_same_job_gets_much_less() -> None:
    """Shows that the model has the fault that gangs cure."""
    node = Node(2)
    job = node.add_job([0, 1], "job", training, seen=False, request_percent=50)
    singles = singles_on(node, [0], request_percent=50)
    singles += [node.add(1, name, saturating(), request_percent=25) for name in ("a", "b")]
    assert speeds(node, [job], singles)[0] < 0.45


def test_weights_of_1_to_3_hold_for_a_job() -> None:
    node = Node(2)
    job = node.add_job([0, 1], "job", training, weight=100)
    got = speeds(node, [job], singles_on(node, [0, 1], weight=300), run_s=8)
    assert got == pytest.approx([0.25, 0.75, 0.75], abs=NEAR)


def test_two_jobs_on_the_same_cards_share_by_weight() -> None:
    node = Node(2)
    jobs = [node.add_job([0, 1], name, training, weight=w) for name, w in (("one", 100), ("three", 300))]
    got = speeds(node, jobs, [], run_s=8)
    assert got == pytest.approx([0.25, 0.75], abs=NEAR)
    assert sum(got) >= 0.97


def test_two_jobs_and_a_single_share_in_three() -> None:
    node = Node(2)
    jobs = [node.add_job([0, 1], name, training) for name in ("a", "b")]
    got = speeds(node, jobs, singles_on(node, [0, 1]), run_s=9)
    assert got == pytest.approx([1 / 3] * 4, abs=NEAR)


def test_a_single_on_one_card_alone_and_the_job_get_half_each() -> None:
    """The other card stands idle, or is lent, while the job has no turn."""
    node = Node(2)
    job = node.add_job([0, 1], "job", training, request_percent=50)
    got = speeds(node, [job], singles_on(node, [0], request_percent=50))
    assert min(got) >= 0.48


def test_jobs_that_overlap_on_one_card_of_three_get_half_each() -> None:
    node = Node(3)
    jobs = [node.add_job([0, 1], "left", training), node.add_job([1, 2], "right", training)]
    assert min(speeds(node, jobs, [])) >= 0.48


def test_jobs_in_a_circle_of_three_cards_get_half_of_it_together() -> None:
    """Any two overlap, so one of three runs at a time; none waits for ever."""
    node = Node(3)
    jobs = [node.add_job(cards, f"job{cards[0]}", training) for cards in ([0, 1], [1, 2], [2, 0])]
    got = speeds(node, jobs, [], run_s=6)
    assert got == pytest.approx([1 / 3] * 3, abs=NEAR)


def test_a_job_on_eight_cards_gets_its_half_beside_eight_singles() -> None:
    node = Node(8)
    job = node.add_job(list(range(8)), "job", training, request_percent=50)
    got = speeds(node, [job], singles_on(node, list(range(8)), request_percent=50), run_s=2)
    assert min(got) >= 0.47


def test_the_least_of_a_job_s_entitlements_is_its_share() -> None:
    """What it does not use of the other card is the other tenant's there."""
    node = Node(2)
    job = node.add_job([0, 1], "job", training, weight=100)
    singles = [node.add(0, "light", saturating(), weight=100), node.add(1, "heavy", saturating(), weight=300)]
    assert speeds(node, [job], singles, run_s=8) == pytest.approx([0.25, 0.75, 0.75], abs=0.03)


def test_pods_of_one_job_are_one_gang_by_name() -> None:
    node = Node(2)
    job = node.add_job([0, 1], "", training, gang="job", names=["pod-a", "pod-b"], request_percent=50)
    got = speeds(node, [job], singles_on(node, [0, 1], request_percent=50))
    assert min(got) >= 0.48
    assert set(node.coordinator.gangs) == {GangKey("job", is_named=True)}


def test_independent_work_on_two_cards_is_not_slowed_on_the_card_of_its_own() -> None:
    node = Node(2)
    here, there = node.add(0, "same", saturating()), node.add(1, "same", shallow(8, 500 * US))
    other = node.add(0, "other", saturating())
    _, got = measure(node, [], [here, there, other])
    assert got == pytest.approx([0.5, 1.0, 0.5], abs=NEAR)
    assert not node.coordinator.gangs


def test_a_tenant_that_is_to_be_no_gang_is_none() -> None:
    node = Node(2)
    node.add_job([0, 1], "job", training)
    for card in node.cards:
        card.terms[card.tenants.popitem()[0]] = SchedParams(gang=GANG_OFF)
    assert not node.coordinator.gangs


# ---- turns ----


def test_a_gang_alone_on_its_cards_is_not_asked() -> None:
    node = Node(2)
    job = node.add_job([0, 1], "job", synced_training, limit_percent=40)
    node.run(300 * MS)
    assert not any(rank.grant.is_shared for rank in job.ranks)
    node.add(0, "other", saturating())
    node.run(600 * MS)
    assert all(rank.grant.is_shared for rank in job.ranks)


def synced_training():
    return synced(3, 500 * US, 500 * US, 100 * US)


def test_turns_begin_and_end_at_the_same_time_on_all_cards_and_are_exclusive() -> None:
    node = Node(3)
    node.add_job([0, 1, 2], "job", training)
    singles_on(node, [0, 1, 2])
    node.run(3 * S)
    turns = turns_of(node, "job")
    assert len(turns[0]) >= 8
    assert turns[0] == turns[1] == turns[2]
    assert all(end - begin >= node.config.gang_quantum_ns for begin, end in turns[0])
    for card in node.cards:
        for at_ns, decision in card.decisions:
            spent = card.tenants["single" + card.gpu[-1]].spent_ns  # type: ignore[index]
            if decision.gang_turn and at_ns > S:
                assert decision.grants["single" + card.gpu[-1]].granted_ns <= spent  # type: ignore[index]


def test_a_gang_that_nobody_else_competes_with_keeps_its_turn() -> None:
    node = Node(2)
    job = node.add_job([0, 1], "job", training)
    node.add(0, "idle", iter([("host", 60 * S)]))
    assert speeds(node, [job], [])[0] >= 0.97
    assert sum(node.coordinator.stats.counters().ended.values()) <= 1


def test_a_light_gang_costs_the_singles_no_more_than_it_uses() -> None:
    """It works for 2 ms of every 20."""
    node = Node(2)
    job = node.add_job([0, 1], "job", lambda: synced(3, 500 * US, 500 * US, 18 * MS))
    singles = singles_on(node, [0, 1])
    (steps,), got = measure(node, [job], singles)
    used = steps / ALONE
    assert min(got) >= 1 - used - NEAR
    assert used >= 0.07


def test_a_gang_pays_for_the_time_of_its_turns_however_little_of_it_runs() -> None:
    """Its hosts are slow: it needs 0.6 of its cards. The singles keep their half."""
    node = Node(2)
    script = lambda: synced(3, 500 * US, 500 * US, 1300 * US)  # noqa: E731
    job = node.add_job([0, 1], "job", script, request_percent=50)
    (steps,), got = measure(node, [job], singles_on(node, [0, 1], request_percent=50))
    assert min(got) >= 0.46
    assert steps * (2 * MS + 1300 * US) >= 0.46


def test_a_high_tenant_on_one_card_is_served_as_beside_a_single() -> None:
    taken = {}
    for beside in ("gang", "single"):
        node = Node(2)
        if beside == "gang":
            node.add_job([0, 1], "low", training, priority=1)
        else:
            node.add(0, "low", saturating(200 * US), priority=1)
        high = node.add(0, "high", bursty(20 * MS, 20, 140 * US), priority=3, request_percent=30)
        node.run(3 * S)
        taken[beside] = sorted(latencies(high)[20:])
    worst = {beside: values[int(len(values) * 0.98)] for beside, values in taken.items()}
    assert worst["gang"] <= worst["single"] + node.config.run_ahead_ns
    middle = {beside: values[len(values) // 2] for beside, values in taken.items()}
    assert middle["gang"] <= middle["single"] + MS


def test_a_limit_on_one_card_stops_the_gang_on_all_of_them() -> None:
    node = Node(2)
    job = node.add_job([0, 1], "job", training, limit_percent=30)
    got = speeds(node, [job], singles_on(node, [0, 1]), run_s=6)
    assert got[0] == pytest.approx(0.30, abs=NEAR)
    assert min(got[1:]) >= 0.67


def test_a_suspended_member_stops_the_gang_and_frees_its_cards() -> None:
    node = Node(2)
    job = node.add_job([0, 1], "", training, gang="job", names=["a", "b"])
    singles = singles_on(node, [0, 1])
    node.run(S)
    node.cards[0].terms[job.ranks[0].name] = SchedParams(gang="job", is_suspended=True)
    got = speeds(node, [job], singles)
    assert got[0] == 0
    assert min(got[1:]) >= 0.97
    node.cards[0].terms[job.ranks[0].name] = SchedParams(gang="job")
    of_jobs, _ = measure(node, [job], [], warm_ns=node.now_ns + S)
    assert of_jobs[0] / ALONE == pytest.approx(0.5, abs=NEAR)


# ---- members that come and go ----


def test_a_rank_that_dies_ends_the_turn_and_frees_the_cards() -> None:
    node = Node(2)
    job = node.add_job([0, 1], "job", training)
    singles = singles_on(node, [0, 1])
    node.run(S)
    while not node.cards[0].decisions[-1][1].gang_turn:
        node.run(node.now_ns + MS)
    node.kill(job.ranks[0])
    killed_ns = node.now_ns
    node.run(killed_ns + 500 * MS)
    node.kill(job.ranks[1])  # the library of the job's framework ends the others
    before = [single.ran_ns for single in singles]
    node.run(killed_ns + 600 * MS)
    assert min(s.ran_ns - b for s, b in zip(singles, before, strict=True)) >= 75 * MS
    assert not node.coordinator.gangs


def test_a_member_that_registers_late_joins_the_turns() -> None:
    node = Node(3)
    node.add_job([0, 1], "job", training)
    singles_on(node, [0, 1])
    node.add(2, "single2", shallow(8, 500 * US))
    node.run(S)
    node.cards[2].in_gang.add("job")  # type: ignore[arg-type]
    late = node.add(2, "job", saturating())
    node.run(4 * S)
    turns = [[turn for turn in of_card if turn[0] > 2 * S] for of_card in turns_of(node, "job")]
    assert turns[0]
    assert turns[0] == turns[1] == turns[2]
    assert late.ran_ns >= 0.4 * 3 * S


def test_a_gang_is_seen_in_the_middle_of_its_work() -> None:
    """The library finds out that processes wait for each other after a while."""
    node = Node(2)
    job = node.add_job([0, 1], "job", training, seen=False)
    singles = singles_on(node, [0, 1])
    node.run(S)
    for card in node.cards:
        card.in_gang.add(job.ranks[0].name)
    assert min(speeds(node, [job], singles)) >= 0.47


@pytest.mark.parametrize("into_ms", [0, 3, 50, 97, 101, 105])
def test_a_daemon_that_restarts_at_any_moment_of_a_turn_goes_on(into_ms: int) -> None:
    node = Node(2)
    job = node.add_job([0, 1], "job", training, request_percent=50)
    singles = singles_on(node, [0, 1], request_percent=50)
    node.run(S)
    while node.cards[0].decisions[-1][1].gang_turn:
        node.run(node.now_ns + MS)
    while not node.cards[0].decisions[-1][1].gang_turn:
        node.run(node.now_ns + MS)
    node.run(node.now_ns + into_ms * MS)
    node.restart_daemon()
    got = speeds_from_now(node, [job], singles)
    assert min(got) >= 0.47


def speeds_from_now(node: Node, jobs: list[Job], singles: list[Tenant]) -> list[float]:
    of_jobs, of_singles = measure(node, jobs, singles, warm_ns=node.now_ns + 200 * MS)
    return [steps / ALONE for steps in of_jobs] + of_singles


# ---- none waits for ever ----


@pytest.mark.parametrize("seed", range(8))
def test_gangs_of_any_shape_all_get_turns(seed: int) -> None:
    """Random gangs on random cards, some beside singles: each waits a bounded time for its next turn."""
    chance = random.Random(seed)  # noqa: S311
    cards = chance.randint(2, 5)
    node = Node(cards)
    count = chance.randint(2, 4)
    for number in range(count):
        places = chance.sample(range(cards), chance.randint(1 if number else 2, cards))
        weight, priority = chance.choice([50, 100, 200]), chance.choice([1, 2])
        node.add_job(places, f"job{number}", training, weight=weight, priority=priority)
    for card in range(cards):
        if chance.random() < 0.5:
            node.add(card, f"single{card}", saturating(chance.choice([200, 1500]) * US))
    node.run(5 * S)
    for gang in node.coordinator.gangs.values():
        if not gang.is_real:
            continue
        gpu = next(iter(gang.seats))
        card = next(card for card in node.cards if card.gpu == gpu)
        turns = turns_of(node, gang.key.name)[node.cards.index(card)]
        if gang.phase is Phase.RUNNING:
            turns.append((gang.start_ns, node.now_ns))
        assert turns, gang.key
        ends = [0, *(end for _, end in turns)]
        begins = [*(begin for begin, _ in turns), node.now_ns]
        assert max(b - e for b, e in zip(begins, ends, strict=True)) < 2.5 * S


def test_turns_of_singles_are_no_concern_of_the_gang_s_other_cards() -> None:
    """While a gang waits, a card's turns pass from one single to the next without a look at the others."""
    node = Node(4)
    node.add_job([0, 1, 2, 3], "job", training, weight=100)
    for card in range(4):
        for name in ("a", "b"):
            node.add(card, f"{name}{card}", saturating((300 + 70 * card) * US), weight=100)
    node.run(3 * S)
    together = sum(len(card.decisions) for card in node.cards) - node.lone_steps
    assert node.lone_steps > together


@pytest.mark.parametrize("every_ms", [60, 250])
def test_a_tenant_that_is_a_gang_and_none_by_turns_gains_nothing(every_ms: int) -> None:
    """What it had as a gang still counts when it is one again."""
    node = Node(2)
    job = node.add_job([0, 1], "job", training)
    other = node.add_job([0, 1], "other", training)
    singles = singles_on(node, [0, 1])
    name = job.ranks[0].name

    def flip() -> None:
        for card in node.cards:
            card.in_gang ^= {name}
        node.ring(name)
        node.after(every_ms * MS, flip)

    node.after(every_ms * MS, flip)
    got = speeds(node, [job, other], singles, run_s=5)
    assert min(got[1:]) >= 1 / 3 - 0.08
