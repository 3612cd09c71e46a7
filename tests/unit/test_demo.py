# SPDX-License-Identifier: Apache-2.0
"""What the demo makes of what it saw."""

from __future__ import annotations

import io
import os

import pytest

from limiter.demo import display
from limiter.demo.display import DisplayRow, Screen, bar
from limiter.demo.sampler import UsageSample, cpu_waits_ns, share, waited
from limiter.demo.scenario import Outcome, scaled
from limiter.demo.tenants import DemoTenant, TenantSpec, entitled, roles
from limiter.demo.verdict import Window, describe, judge, problems_of

GIB = 1 << 30
ACTOR = DemoTenant(TenantSpec("small", 2 * GIB, 1, ()), {"GPULIMIT_TENANT": "t"})
SEEN = UsageSample(at_s=2.0, registered=True, used_bytes=GIB, limit_bytes=2 * GIB, refused=1, spent_ns=10**9)
ROW = DisplayRow("small", "2GiB", SEEN, 0.2, 0.25)


def window(small: float, other: float, starved: float = 0.0) -> Window:
    return Window("three", {"small": 0.25, "other": 0.75}, {"small": small, "other": other}, starved)


@pytest.mark.parametrize(
    ("used_gib", "small", "other", "problem"),
    [
        (1, 0.25, 0.75, None),
        (1, 0.23, 0.77, None),
        (1, 0.15, 0.45, None),  # a host too busy to keep the GPU busy: the parts are right
        (3, 0.25, 0.75, "memory"),
        (1, 0.40, 0.60, "15 points too much (three)"),
        (1, 0.05, 0.95, "20 points too little (three)"),
    ],
)
def test_promises_are_compared_with_what_was_seen(
    used_gib: int, small: float, other: float, problem: str | None
) -> None:
    seen = UsageSample(used_bytes=used_gib * GIB, limit_bytes=2 * GIB)
    problems = judge(ACTOR, seen, [window(small, other)]).problems
    assert len(problems) == (problem is not None)
    assert problem is None or problem in problems[0]


def test_who_was_not_there_is_not_judged() -> None:
    alone = Window("two", {"other": 1.0}, {"small": 0.0, "other": 0.9})
    assert judge(ACTOR, SEEN, [alone]).problems == ()
    assert "-" in describe([judge(ACTOR, SEEN, [alone])], [alone])


def test_what_may_be_the_hosts_doing_is_said_and_not_held_against_anybody() -> None:
    busy = [window(0.4, 0.6, starved=0.3)]
    verdict = judge(ACTOR, SEEN, busy)
    assert (verdict.problems, verdict.doubts) == ((), ("15 points too much (three)",))
    assert "15 points too much (three), busy host" in describe([verdict], busy)
    outcome = Outcome([verdict], busy)
    assert outcome.is_good
    assert "without a CPU for 30% of the time" in outcome.closing
    assert Outcome([], []).closing == "everything as promised"
    assert Outcome([], [], ["x"]).closing == "NOT everything was as promised"
    assert problems_of([window(0.1, 0.1, starved=0.3)]) == []


def test_waiting_for_a_cpu_is_counted_by_thread() -> None:
    assert waited({1: 0, 2: 5 * 10**8}, {1: 10**8, 2: 6 * 10**8, 3: 4 * 10**8}, 1.0) == 0.4
    assert waited({}, {}, 1.0) == 0.0
    assert os.getpid() in cpu_waits_ns(os.getpid())
    assert cpu_waits_ns(1 << 30) == {}


def test_lost_kernels_are_a_problem() -> None:
    actor = DemoTenant(ACTOR.role, ACTOR.variables, results=[{"completed": 9, "kernels": 10}])
    assert judge(actor, SEEN, []).problems == ("kernels were lost",)


def test_a_gpu_that_stood_idle_is_a_problem() -> None:
    assert problems_of([window(0.1, 0.3)])
    assert not Outcome([], [], ["something"]).is_good
    assert Outcome([], []).is_good


def test_parts_follow_weights_and_fit_the_card() -> None:
    company = roles(80 * GIB)
    assert entitled(company)["large"] == pytest.approx(0.5)
    assert sum(entitled(company[1:]).values()) == pytest.approx(1.0)
    assert sum(role.memory_bytes for role in company) == 14 * GIB
    assert sum(role.memory_bytes for role in roles(8 * GIB)) == 7 * GIB
    assert [role.memory for role in roles(8 * GIB)] == ["1GiB", "2GiB", "4GiB"]


def test_shares_are_gpu_time_over_wall_time() -> None:
    assert share(UsageSample(at_s=1.0), SEEN) == 1.0
    assert share(SEEN, SEEN) == 0.0
    assert scaled({"a": 1.0, "b": 1.0}) == {"a": 0.5, "b": 0.5}
    assert scaled({"a": 0.2, "b": 0.3}) == {"a": 0.2, "b": 0.3}


def test_the_closing_table_says_what_was_not_kept() -> None:
    text = describe([judge(ACTOR, SEEN, [window(0.4, 0.6)])], [window(0.4, 0.6)])
    assert "15 points too much" in text
    assert "40.0%" in text


def test_bars_stay_inside_their_cells() -> None:
    assert {len(bar(part)) for part in (-1.0, 0.0, 0.5, 1.0, 7.0)} == {20}


def test_elsewhere_than_on_a_terminal_there_are_plain_lines_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = io.StringIO()
    screen = Screen(output)
    screen.draw([ROW], "daemon running")
    screen.draw([ROW], "daemon running")
    assert output.getvalue().count("\n") == 1
    monkeypatch.setattr(display, "LINE_EVERY_S", 0.0)
    screen.draw([ROW], "no daemon")
    assert "small 20% (due 25%), 1 GiB | no daemon" in output.getvalue()
    screen.keep([ROW])
    screen.say("after")
    assert "\033" not in output.getvalue()
    assert output.getvalue().endswith("after\n")


def test_on_a_terminal_the_table_is_drawn_in_place() -> None:
    output = io.StringIO()
    output.isatty = lambda: True  # type: ignore[method-assign]
    screen = Screen(output)
    screen.draw([ROW], "daemon running")
    screen.draw([ROW], "daemon running")
    assert output.getvalue().count("\033[3A") == 1


def test_on_a_narrow_terminal_no_line_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = io.StringIO()
    wide = UsageSample(used_bytes=1999 << 20, limit_bytes=2 * GIB, refused=123, launches=1_234_567)
    Screen(output).keep([DisplayRow("medium", "512MiB", wide, 1.0, None)])
    assert max(len(line) for line in output.getvalue().splitlines()) <= 80
