# SPDX-License-Identifier: Apache-2.0
"""What each user may have open and ask for; in virtual time."""

from __future__ import annotations

import pytest

from hypervisor.api.accounts import MAX_REQUEST_DELAY_S, NEWS_S, Accounts, CallerLimits
from hypervisor.errors import Refused

LIMITS = CallerLimits(connections=100, requests_per_s=10, descriptors=1024)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_user_has_so_many_connections_and_an_operator_any_number() -> None:
    accounts = Accounts(LIMITS)
    user, root = accounts.of("user 1"), accounts.of("user 0", is_operator=True)
    for number in range(100):
        assert accounts.refusal(user, 50) is None
        accounts.opened(user, number)
        accounts.opened(root, number)
    assert accounts.refusal(user, 50) == "user 1 has 100 connections to the daemon already"
    assert accounts.refusal(accounts.of("user 2"), 50) is None
    assert accounts.refusal(root, 1023) is None
    accounts.closed(user, 0)
    assert accounts.refusal(user, 50) is None
    assert accounts.largest() is user


def test_the_last_descriptors_are_for_operators() -> None:
    accounts = Accounts(LIMITS)
    assert accounts.refusal(accounts.of("user 1"), LIMITS.last_descriptor - 1) is None
    refusal = accounts.refusal(accounts.of("user 1"), LIMITS.last_descriptor)
    assert refusal is not None and "no descriptors left" in refusal
    assert accounts.refusal(accounts.of("user 0", is_operator=True), LIMITS.last_descriptor) is None
    few = CallerLimits(connections=1 << 16, requests_per_s=1, descriptors=256)
    assert few.connections_of_user == (256 - 64) // 4


def test_bursts_are_answered_then_requests_wait_then_they_are_refused() -> None:
    clock = Clock()
    accounts = Accounts(LIMITS, clock)
    user = accounts.of("user 1")
    assert [accounts.charge(user, 1) for _ in range(100)] == [0.0] * 100
    delays = [accounts.charge(user, 1) for _ in range(20)]
    with pytest.raises(Refused, match="asks more than 10 times a second") as refusal:
        accounts.charge(user, 1)
    assert refusal.value.status == 503
    assert delays == sorted(delays)
    assert delays[-1] == pytest.approx(MAX_REQUEST_DELAY_S)
    assert accounts.charge(accounts.of("user 2"), 1) == 0.0
    clock.now_s = 60.0
    assert accounts.charge(user, 1) == 0.0


def test_accounts_without_connections_and_debts_are_forgotten() -> None:
    clock = Clock()
    accounts = Accounts(LIMITS, clock)
    user = accounts.of("user 1")
    accounts.charge(user, 50)
    accounts.forget_idle()
    assert accounts.of("user 1") is user
    clock.now_s = 10.0
    accounts.forget_idle()
    assert accounts.of("user 1") is not user


def test_new_connections_of_a_user_have_a_rate_of_their_own_and_another_users_are_not_counted() -> None:
    clock = Clock()
    accounts = Accounts(LIMITS, clock)
    user = accounts.of("user 1")
    assert [accounts.connects(user) for _ in range(102)] == [True] * 100 + [False] * 2
    assert accounts.connects(accounts.of("user 2"))
    assert accounts.charge(user, 1) == 0.0
    clock.now_s = 1.0
    assert [accounts.connects(user) for _ in range(11)] == [True] * 10 + [False]
    accounts.forget_idle()
    assert accounts.of("user 1") is user
    assert accounts.too_many_new(user) == "user 1 connects more than 10 times a second"


def test_the_log_hears_once_in_a_while_that_a_user_connects_too_often() -> None:
    clock = Clock()
    accounts = Accounts(LIMITS, clock)
    user = accounts.of("user 1")
    assert [accounts.is_news(user) for _ in range(3)] == [True, False, False]
    clock.now_s = NEWS_S
    assert accounts.is_news(user)
