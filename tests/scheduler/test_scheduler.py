# SPDX-License-Identifier: Apache-2.0
"""The arbiter on a model of a card, in virtual time: who gets what, how soon, and what is wasted.

The model (tests/scheduler/gpu_model.py) has no cost for switching between contexts and knows each kernel's
length, so these figures show that the decisions are right, not what a real card loses.
"""

from __future__ import annotations

from itertools import chain

import pytest

from hypervisor.model import TenantName
from hypervisor.scheduler.scheduler import Scheduler
from hypervisor.scheduler.types import SchedParams, SchedulerConfig, TenantUsage
from tests.scheduler.gpu_model import (
    MS,
    US,
    S,
    Tenant,
    Work,
    World,
    ahead,
    bursty,
    host_bound,
    latencies,
    once,
    saturating,
    shallow,
    shares,
)

NEAR = 0.02


def percentile(values: list[int], part: float) -> float:
    return sorted(values)[int(len(values) * part)] / MS


@pytest.mark.parametrize("weights", [(1, 1), (1, 3), (1, 2, 5), (100, 1)])
@pytest.mark.parametrize("kernel_us", [50, 500, 3000])
def test_saturating_tenants_share_by_weight_and_waste_nothing(
    weights: tuple[int, ...], kernel_us: int
) -> None:
    world = World()
    tenants = [world.add(f"t{i}", saturating(kernel_us * US), weight=w) for i, w in enumerate(weights)]
    parts, busy = shares(world, tenants, warm_ns=S // 2, run_ns=2 * S)
    assert parts == pytest.approx([w / sum(weights) for w in weights], abs=NEAR)
    assert busy >= 0.97


def test_kernels_of_different_length_do_not_shift_the_shares() -> None:
    world = World()
    tenants = [world.add("short", saturating(20 * US)), world.add("long", saturating(15 * MS))]
    parts, busy = shares(world, tenants, warm_ns=S // 2, run_ns=3 * S)
    assert parts == pytest.approx([0.5, 0.5], abs=NEAR)
    assert busy >= 0.97


def test_turns_are_exclusive() -> None:
    world = World()
    tenants = [world.add("a", saturating()), world.add("b", saturating(), weight=300)]
    shares(world, tenants, warm_ns=S // 2, run_ns=S)
    late = [d for at, d in world.decisions if at > S // 2]
    for decision in late:
        open_to = [n for n, g in decision.grants.items() if g.granted_ns > world.tenants[n].spent_ns]
        assert len(open_to) <= 1
    assert {d.turn for d in late} >= {"a", "b"}


@pytest.mark.parametrize(("weight", "expected"), [(1, 0.25), (3, 0.5)])
def test_a_host_bound_tenant_is_paced_to_its_share_and_the_rest_is_used(weight: int, expected: float) -> None:
    """It needs the GPU for 37 % of its step when alone, so it can never fill a turn."""
    world = World()
    step = host_bound(2 * MS, 20, 60 * US)
    tenants = [world.add("step", step, weight=weight), world.add("sat", saturating(), weight=3)]
    parts, busy = shares(world, tenants, warm_ns=S, run_ns=3 * S)
    assert busy >= 0.97
    assert parts[0] <= expected + NEAR
    if weight == 1:
        assert parts[0] == pytest.approx(expected, abs=NEAR)


def test_two_host_bound_tenants_overlap_their_host_time() -> None:
    world = World()
    tenants = [world.add(n, host_bound(2 * MS, 20, 60 * US)) for n in ("a", "b")]
    parts, busy = shares(world, tenants, warm_ns=S, run_ns=2 * S)
    assert parts == pytest.approx([0.5, 0.5], abs=0.03)
    assert busy >= 0.9


def test_a_light_tenant_beside_saturating_ones_is_as_fast_as_slicing_makes_it() -> None:
    """Alone a request takes 2.8 ms; beside one context the card's own slicing doubles that."""
    world = World()
    light = world.add("light", bursty(20 * MS, 20, 140 * US))
    others = [world.add("a", saturating()), world.add("b", saturating())]
    _, busy = shares(world, [light, *others], warm_ns=S, run_ns=3 * S)
    taken = latencies(light)[10:]
    assert percentile(taken, 0.5) < 2.1 * 2.8
    assert percentile(taken, 0.99) < 3.0 * 2.8
    assert busy >= 0.97


def test_a_high_tenant_inside_its_request_hardly_notices_the_others() -> None:
    world = World()
    high = world.add("high", bursty(20 * MS, 20, 140 * US), priority=3, request_percent=30)
    low = world.add("low", saturating(), priority=1)
    _, busy = shares(world, [high, low], warm_ns=S, run_ns=3 * S)
    taken = latencies(high)[10:]
    assert percentile(taken, 0.5) < 1.5 * 2.8
    assert percentile(taken, 0.99) < 1.7 * 2.8
    assert busy >= 0.97


def test_requests_submitted_at_once_wait_for_one_kernel_of_the_neighbour() -> None:
    """Nothing of a request is held back and nobody looks at its end: the daemon has to know how long it
    lasts, what the neighbour had queued before it included.
    """
    world = World()
    high = world.add("high", bursty(20 * MS, 7, 700 * US), priority=3, request_percent=50)
    other = world.add("other", saturating(700 * US))
    _, busy = shares(world, [high, other], warm_ns=S, run_ns=3 * S)
    taken = latencies(high)[10:]
    assert percentile(taken, 0.99) < 4.9 + 0.75
    assert busy >= 0.97


def test_a_high_tenant_outside_its_request_gets_no_more_than_its_part() -> None:
    world = World()
    tenants = [
        world.add("high", saturating(), priority=3, request_percent=30, weight=100),
        world.add("normal", saturating(), weight=100),
    ]
    parts, _ = shares(world, tenants, warm_ns=S, run_ns=3 * S)
    assert parts == pytest.approx([0.5, 0.5], abs=0.03)


def test_a_light_tenant_over_its_share_is_paced() -> None:
    world = World()
    light = world.add("light", bursty(20 * MS, 20, 140 * US), weight=5)
    parts, busy = shares(world, [light, world.add("sat", saturating(), weight=95)], warm_ns=S, run_ns=3 * S)
    assert parts[0] == pytest.approx(0.05, abs=NEAR)
    assert busy >= 0.97


@pytest.mark.parametrize("kernel_us", [100, 500, 2000])
def test_requests_of_all_shift_no_share(kernel_us: int) -> None:
    world = World()
    quotas = {"a": (15, 1), "b": (30, 2), "c": (45, 3)}
    tenants = [
        world.add(name, saturating(kernel_us * US), request_percent=request, weight=weight)
        for name, (request, weight) in quotas.items()
    ]
    parts, busy = shares(world, tenants, warm_ns=S, run_ns=3 * S)
    assert parts == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=NEAR)
    assert busy >= 0.97


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        ([(20, 100), (0, 100)], [0.5, 0.5]),
        ([(60, 100), (0, 100)], [0.6, 0.4]),
        ([(50, 100), (50, 100)], [0.5, 0.5]),
        ([(25, 100), (75, 100)], [0.25, 0.75]),
        ([(20, 300), (0, 100)], [0.75, 0.25]),
        ([(20, 10), (0, 90)], [0.2, 0.8]),
        ([(50, 100), (30, 100), (20, 100)], [0.5, 0.3, 0.2]),
        ([(60, 1), (0, 1), (20, 2)], [0.6, 0.4 / 3, 0.8 / 3]),
    ],
)
def test_time_goes_by_weight_and_a_request_is_a_floor(
    quotas: list[tuple[int, int]], expected: list[float]
) -> None:
    world = World()
    tenants = [
        world.add(f"t{place}", saturating(), request_percent=request, weight=weight)
        for place, (request, weight) in enumerate(quotas)
    ]
    parts, busy = shares(world, tenants, warm_ns=S, run_ns=3 * S)
    assert parts == pytest.approx(expected, abs=NEAR)
    assert busy >= 0.97


@pytest.mark.parametrize("priority", [1, 2, 3])
@pytest.mark.parametrize(("request_percent", "expected"), [(20, 0.5), (60, 0.6)])
def test_no_class_changes_a_share(priority: int, request_percent: int, expected: float) -> None:
    """A class decides who is first inside the request, not how much it is."""
    world = World()
    tenants = [
        world.add("a", saturating(), request_percent=request_percent, priority=priority),
        world.add("b", saturating(), request_percent=10),
    ]
    parts, _ = shares(world, tenants, warm_ns=S, run_ns=3 * S)
    assert parts == pytest.approx([expected, 1 - expected], abs=0.03)


def test_a_limit_below_the_share_leaves_the_rest_to_requests_and_weights() -> None:
    world = World()
    tenants = [
        world.add("capped", saturating(), limit_percent=20),
        world.add("lifted", saturating(), request_percent=60),
        world.add("other", saturating()),
    ]
    parts, busy = shares(world, tenants, warm_ns=S, run_ns=3 * S)
    assert [part * busy for part in parts] == pytest.approx([0.2, 0.6, 0.2], abs=NEAR)


def test_limits_cap_and_the_rest_goes_to_others() -> None:
    world = World()
    tenants = [world.add("capped", saturating(), limit_percent=30), world.add("free", saturating())]
    parts, busy = shares(world, tenants, warm_ns=S, run_ns=3 * S)
    assert parts[0] * busy == pytest.approx(0.30, abs=0.01)
    assert busy >= 0.97


def test_limits_hold_when_nobody_uses_the_rest() -> None:
    world = World()
    tenants = [
        world.add("a", saturating(), limit_percent=30),
        world.add("b", saturating(), limit_percent=50),
    ]
    parts, busy = shares(world, tenants, warm_ns=S, run_ns=3 * S)
    assert [p * busy for p in parts] == pytest.approx([0.3, 0.5], abs=0.01)


def test_unused_share_is_lent_and_taken_back_within_20_ms() -> None:
    world = World()
    lender = once(*[("launch", MS)] * 100, ("sync", 0), ("host", 700 * MS + 300 * US))
    owner = world.add("owner", chain(lender, saturating()), weight=300)
    borrower = world.add("borrower", saturating(), weight=100)
    world.run(600 * MS)
    before, at = borrower.ran_ns, world.now_ns
    world.run(750 * MS)
    assert (borrower.ran_ns - before) / (world.now_ns - at) >= 0.97  # lent: all of it
    while world.now_ns < 3 * S and owner.spent_ns <= 100 * MS:
        world.run(world.now_ns + MS // 2)
    world.run(world.now_ns + 20 * MS)
    back_at, ran = world.now_ns, owner.ran_ns
    world.run(back_at + 80 * MS)
    assert (owner.ran_ns - ran) / (80 * MS) >= 0.65  # and taken back, to within a turn


def test_a_tenant_alone_is_not_asked() -> None:
    world = World()
    alone = world.add("alone", saturating(), limit_percent=40)
    world.run(100 * MS)
    assert not alone.grant.is_shared
    world.add("second", host_bound(50 * MS, 1, MS))
    world.run(110 * MS)
    assert alone.grant.is_shared


def test_one_that_works_beside_idle_ones_has_the_card_to_itself() -> None:
    world = World()
    world.add("idle", once(("host", 60 * S)))
    busy_one = world.add("busy", saturating())
    _, busy = shares(world, [busy_one], warm_ns=200 * MS, run_ns=S)
    assert busy >= 0.99
    assert world.changes < 60  # and costs few wake-ups


def test_a_tenant_that_dies_holding_the_turn_frees_it() -> None:
    world = World()
    victim, other = world.add("victim", saturating()), world.add("other", saturating())
    world.add("third", saturating())
    world.run(S)
    while world.decisions[-1][1].turn != "victim":
        world.run(world.now_ns + 200 * US)
    world.kill(victim)
    before = other.ran_ns
    killed_at = world.now_ns
    world.run(killed_at + 30 * MS)
    turns = {decision.turn for at_ns, decision in world.decisions if at_ns > killed_at}
    assert turns - {None} == {"other", "third"}
    assert other.ran_ns > before


def test_an_endless_kernel_keeps_others_waiting_only_while_it_runs() -> None:
    """The card slices it like any other; its tenant pays for it when it ends, and all goes on."""
    world = World()
    script = chain(once(*[("launch", MS)] * 50), once(("launch", 800 * MS)), saturating())
    hog = Hog(world, "hog", script)
    world.tenants[hog.name], world.terms[hog.name] = hog, SchedParams()
    world.after(0, hog.go)
    other = world.add("other", saturating())
    world.run(S // 2)
    before = other.ran_ns
    world.run(S)
    assert other.ran_ns - before >= 0.4 * (S // 2)  # equal slices at worst, never none
    world.run(4 * S)
    parts, busy = shares(world, [hog, other], warm_ns=4 * S, run_ns=S)
    assert parts == pytest.approx([0.5, 0.5], abs=0.03)
    assert busy >= 0.97


@pytest.mark.parametrize("weights", [(300, 100), (100, 300), (100, 100)])
def test_a_tenant_with_a_shallow_queue_shares_by_weight_too(weights: tuple[int, int]) -> None:
    """It never has enough queued to be held back for it, and a card would give it an equal slice."""
    world = World()
    first = world.add("shallow", shallow(8, 100 * US), weight=weights[0])
    parts, busy = shares(
        world, [first, world.add("deep", saturating(700 * US), weight=weights[1])], warm_ns=S, run_ns=3 * S
    )
    assert parts[0] == pytest.approx(weights[0] / sum(weights), abs=NEAR)
    assert busy >= 0.97


def test_a_request_above_an_equal_slice_is_kept_for_one_whose_host_is_slow() -> None:
    """It needs 0.62 of the card, and equal slices would give it half."""
    alone = World()
    free = alone.add("step", ahead(1 * MS, 40, 21 * US))
    shares(alone, [free], warm_ns=S, run_ns=2 * S)
    world = World()
    step = world.add("step", ahead(1 * MS, 40, 21 * US), request_percent=80)
    parts, busy = shares(world, [step, world.add("other", saturating(700 * US))], warm_ns=S, run_ns=2 * S)
    assert parts[0] * busy >= 0.95 * free.ran_ns / alone.now_ns
    assert busy >= 0.97


def test_nobody_is_waited_for_once_there_are_no_requests() -> None:
    world = World()
    step = world.add("step", ahead(1 * MS, 40, 21 * US), request_percent=80)
    world.add("other", saturating(700 * US))
    entities = world.scheduler._entities
    world.run(S)
    while not (step.name in entities and entities[step.name].pauses_others):
        world.run(world.now_ns + MS // 10)
    world.terms[step.name] = SchedParams()
    world.run(world.now_ns + 20 * MS)
    assert not entities[step.name].pauses_others


class Boaster(Tenant):
    """Says that ever so much is unfinished."""

    def _launch(self) -> None:
        super()._launch()
        self.outstanding_ns += 50 * MS


def test_who_says_that_much_is_queued_does_not_keep_others_waiting_beyond_its_request() -> None:
    world = World()
    boaster = Boaster(world, "boaster", host_bound(2 * MS, 20, 10 * US))
    world.tenants[boaster.name] = boaster
    world.terms[boaster.name] = SchedParams(request_percent=30)
    world.after(0, boaster.go)
    other = world.add("other", saturating())
    shares(world, [boaster, other], warm_ns=S, run_ns=2 * S)
    assert other.ran_ns / world.now_ns > 0.6


class Hog(Tenant):
    """Its library takes no kernel for longer than 1 ms, and learns better only when one has ended."""

    def _launch(self) -> None:
        assert self._pending is not None
        self.cost = min(1.0, MS / self._pending)
        self.owed_ns = max(0, self._pending - MS)
        super()._launch()

    def done(self, work: Work) -> None:
        self.spent_ns += self.owed_ns
        super().done(work)


def test_a_wrong_idea_of_ones_costs_harms_only_oneself() -> None:
    """Charged twice what it uses, a tenant gets half; the others lose nothing."""
    world = World()
    tenants = [world.add("dear", saturating(), cost=2.0), world.add("fair", saturating())]
    parts, busy = shares(world, tenants, warm_ns=S, run_ns=2 * S)
    assert parts[0] == pytest.approx(1 / 3, abs=0.03)
    assert busy >= 0.9


@pytest.mark.parametrize(
    "nonsense",
    [
        TenantUsage(0, 0, 0),
        TenantUsage((1 << 64) - 1, 0, 1),
        TenantUsage(0, (1 << 64) - 1, 0xFFFFFFFF),
        TenantUsage(5, (1 << 64) - 1, 1),
    ],
)
def test_nonsense_in_a_tenant_s_books_disturbs_nobody(nonsense: TenantUsage) -> None:
    """The liar is suspected of nothing, but the other one keeps at least its half."""
    scheduler = Scheduler(SchedulerConfig())
    terms = {TenantName("liar"): SchedParams(), TenantName("honest"): SchedParams()}
    now, spent = 0, 0
    honest = TenantName("honest")
    for round_ in range(2000):
        now += 500 * US
        seen = {
            TenantName("liar"): nonsense if round_ % 2 else TenantUsage(7),
            honest: TenantUsage(spent, 0, 1),
        }
        grant = scheduler.step(now, seen, terms).grants[honest]
        spent += max(0, min(grant.granted_ns - spent, 500 * US)) if grant.is_shared else 500 * US
        assert grant.granted_ns >= 0
    assert spent >= 0.4 * now


def test_suspended_tenants_get_nothing_and_hold_up_nobody() -> None:
    world = World()
    stopped, other = world.add("stopped", saturating(), is_suspended=True), world.add("other", saturating())
    _, busy = shares(world, [other], warm_ns=S // 2, run_ns=S)
    assert stopped.ran_ns <= 3 * MS
    assert busy >= 0.97


def test_a_wait_of_the_daemon_costs_no_more_than_the_time_it_slept() -> None:
    world = World()
    tenants = [world.add("a", saturating()), world.add("b", saturating())]
    world.run(S)
    asleep = world._step_at_ns
    assert asleep is not None
    world._step_at_ns = None
    world.run(S + 100 * MS)  # a stopped daemon: whoever has the turn ends with what it was granted
    world.ring()
    parts, busy = shares(world, tenants, warm_ns=S + 110 * MS, run_ns=S)
    assert parts == pytest.approx([0.5, 0.5], abs=NEAR)
    assert busy >= 0.97
