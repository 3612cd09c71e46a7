# SPDX-License-Identifier: Apache-2.0
"""When to ask again and what to show meanwhile, in virtual time."""

from __future__ import annotations

import pytest

from hypervisor.scraper.target_health import ScrapeTiming, TargetHealth, staggered

PACE = ScrapeTiming(period_s=3.0, longest_s=60.0)


def asked(host: TargetHealth[str], at_s: float, *, page: str = "", takes_s: float = 0.1) -> None:
    assert host.is_due(at_s)
    host.ask(at_s)
    assert not host.is_due(at_s + 1000), "nobody is asked twice at once"
    if page:
        host.took(page, at_s + takes_s)
    else:
        host.failed("timeout", at_s + takes_s)


def test_the_last_page_is_shown_through_one_failure_only() -> None:
    host: TargetHealth[str] = TargetHealth(PACE)
    assert (host.state, host.page) == ("new", None)
    asked(host, 0, page="one")
    assert (host.state, host.page, host.last_page_at_s) == ("up", "one", 0.1)
    asked(host, 3)
    assert (host.state, host.page, host.reason) == ("late", "one", "timeout")
    asked(host, 6)
    assert (host.state, host.page, host.last_page) == ("down", None, "one")
    asked(host, 12, page="two")
    assert (host.state, host.page, host.reason, host.failures) == ("up", "two", "", 0)


def test_who_never_answered_is_down_at_once() -> None:
    host: TargetHealth[str] = TargetHealth(PACE)
    asked(host, 0)
    assert (host.state, host.page) == ("down", None)


def test_pauses_double_up_to_the_longest_and_are_short_again_after_a_page() -> None:
    host: TargetHealth[str] = TargetHealth(PACE)
    at_s, pauses = 0.0, []
    for _ in range(8):
        asked(host, at_s)
        pauses.append(host.next_at_s - at_s)
        assert not host.is_due(host.next_at_s - 0.01)
        at_s = host.next_at_s
    assert pauses == [3, 6, 12, 24, 48, 60, 60, 60]
    asked(host, at_s, page="one")
    assert host.next_at_s - at_s == pytest.approx(3)


def test_a_very_long_failure_overflows_nothing() -> None:
    host: TargetHealth[str] = TargetHealth(PACE)
    for _ in range(5000):
        host.ask(host.next_at_s)
        host.failed("refused", host.next_at_s)
    assert host.failures == 5000


def test_the_period_is_kept_from_beginning_to_beginning() -> None:
    host: TargetHealth[str] = TargetHealth(PACE)
    asked(host, 0, page="one", takes_s=2.0)
    assert host.next_at_s == 3 and host.duration_s == 2
    asked(host, 3, page="two", takes_s=5.0)
    assert host.next_at_s == pytest.approx(8.3), "an answer slower than the period is followed by a pause"


def test_a_longer_period_than_the_longest_pause_is_kept_to() -> None:
    host: TargetHealth[str] = TargetHealth(ScrapeTiming(period_s=300, longest_s=60))
    asked(host, 0)
    assert host.next_at_s == 300


def test_first_tries_are_spread() -> None:
    assert [staggered(n, 4, 0.5) for n in range(4)] == [0, 0.125, 0.25, 0.375]
    assert staggered(0, 0, 0.5) == 0
