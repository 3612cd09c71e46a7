# SPDX-License-Identifier: Apache-2.0
"""Lines of log that can be provoked are bounded, by cause, by user and in all; in virtual time."""

from __future__ import annotations

import logging

from hypervisor.log import LogLimit, account_in_log

HOUR_S = 3600


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Lines:
    """Feeds records to a limit and adds up what passes."""

    def __init__(self, limit_bytes: int) -> None:
        self.clock = Clock()
        self._limit = LogLimit(limit_bytes, self.clock)
        self.passed: list[str] = []

    def log(self, text: str, *arguments: object, level: int = logging.WARNING, user: str = "") -> None:
        record = logging.LogRecord("hypervisor", level, "", 0, text, arguments, None)
        before = account_in_log.set(user)
        if self._limit.filter(record):
            self.passed.append(record.getMessage())
        account_in_log.reset(before)

    @property
    def bytes(self) -> int:
        return sum(100 + len(line) for line in self.passed)


def test_one_cause_is_logged_a_few_times_and_then_once_a_minute_with_a_count() -> None:
    lines = Lines(1 << 20)
    for second in range(600):
        lines.clock.now_s = second
        for _ in range(100):
            lines.log("a client asks nonsense")
    assert 3 <= len(lines.passed) <= 3 + 10
    assert lines.passed[-1].endswith("more like this left out)")


def test_all_causes_together_stay_below_the_limit_for_an_hour() -> None:
    limit = 1 << 20
    lines = Lines(limit)
    for second in range(HOUR_S):
        lines.clock.now_s = second
        for number in range(50):
            lines.log("%s: something", f"cause {second}-{number}", user=f"user {number}")
            lines.log("%s: something else", f"cause {second}-{number}")
    assert limit / 4 < lines.bytes <= limit


def test_one_user_cannot_use_up_the_log_of_others() -> None:
    lines = Lines(64 << 10)
    for number in range(10_000):
        lines.log("%s: no", f"cause {number}", user="bad")
    assert lines.bytes <= (64 << 10) / 8 + 200
    lines.log("%s: no", "news", user="good")
    assert lines.passed[-1] == "news: no"


def test_what_no_users_call_provoked_is_logged_when_users_have_used_up_theirs() -> None:
    lines = Lines(64 << 10)
    for number in range(10_000):
        lines.log("%s: no", f"cause {number}", user=f"user {number}")
    lines.log("%s", "a GPU fell off the bus", level=logging.ERROR)
    assert lines.passed[-1] == "a GPU fell off the bus"


def test_different_events_are_different_causes_and_debug_lines_are_free() -> None:
    lines = Lines(1 << 20)
    for number in range(20):
        lines.log("%s: %s", f"kind {number}", "text")
    assert len(lines.passed) == 20
    for _ in range(1000):
        lines.log("x", level=logging.DEBUG)
    assert len(lines.passed) == 1020
