# SPDX-License-Identifier: Apache-2.0
"""What the demo makes of what it saw."""

from __future__ import annotations

import io

import pytest

from limiter.demo.cast import Actor, Role
from limiter.demo.screen import Screen, bar
from limiter.demo.stage import Look, share
from limiter.demo.verdict import describe, judge

ACTOR = Actor(Role("small", "2GiB", 20, ()), {"GPULIMIT_TENANT": "t"})
SEEN = Look(at_s=2.0, registered=True, used_bytes=1 << 30, limit_bytes=2 << 30, refused=1, spent_ns=10**9)


@pytest.mark.parametrize(
    ("used_gib", "percent", "problem"),
    [
        (1, 20.0, None),
        (1, 19.0, None),
        (3, 20.0, "memory"),
        (1, 40.0, "more GPU time"),
        (1, 5.0, "less GPU time"),
    ],
)
def test_promises_are_compared_with_what_was_seen(used_gib: int, percent: float, problem: str | None) -> None:
    seen = Look(used_bytes=used_gib << 30, limit_bytes=2 << 30)
    problems = judge(ACTOR, seen, [percent / 100]).problems
    assert len(problems) == (problem is not None)
    assert problem is None or problem in problems[0]


def test_lost_kernels_are_a_problem() -> None:
    actor = Actor(ACTOR.role, ACTOR.variables, results=[{"completed": 9, "kernels": 10}])
    assert judge(actor, SEEN, [0.2]).problems == ("kernels were lost",)


def test_shares_are_gpu_time_over_wall_time() -> None:
    assert share(Look(at_s=1.0), SEEN) == 1.0
    assert share(SEEN, SEEN) == 0.0


def test_the_closing_table_says_what_was_not_kept() -> None:
    text = describe([judge(ACTOR, SEEN, [0.4])])
    assert "more GPU time than its limit" in text
    assert "40.0%" in text


def test_bars_stay_inside_their_cells() -> None:
    assert {len(bar(part)) for part in (-1.0, 0.0, 0.5, 1.0, 7.0)} == {20}


def test_elsewhere_than_on_a_terminal_there_are_no_control_characters() -> None:
    output = io.StringIO()
    screen = Screen(output)
    screen.draw([ACTOR], [SEEN], [0.2])
    assert output.getvalue() == ""
    screen.keep([ACTOR], [SEEN], [0.2])
    screen.say("after")
    assert "\033" not in output.getvalue()
    assert output.getvalue().endswith("after\n")


def test_on_a_terminal_the_table_is_drawn_in_place() -> None:
    output = io.StringIO()
    output.isatty = lambda: True  # type: ignore[method-assign]
    screen = Screen(output)
    screen.draw([ACTOR], [SEEN], [0.2])
    screen.draw([ACTOR], [SEEN], [0.2])
    assert output.getvalue().count("\033[2A") == 1


def test_on_a_narrow_terminal_no_line_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = io.StringIO()
    wide = Look(used_bytes=1999 << 20, limit_bytes=2 << 30, refused=123, launches=1_234_567)
    Screen(output).keep([ACTOR], [wide], [1.0])
    assert max(len(line) for line in output.getvalue().splitlines()) <= 80
