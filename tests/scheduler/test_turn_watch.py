# SPDX-License-Identifier: Apache-2.0
"""What is looked for during a turn, in Python and, which must say the same, in C."""

from __future__ import annotations

import random

import pytest
from limiter._native import ffi, lib

from hypervisor.model import TenantName
from hypervisor.scheduler.turn_watch import ANY_BACKLOG_NS, EXPIRED, FIRST_POLL_NS, MAX_POLL_NS, poll, start
from hypervisor.scheduler.types import MS, QuantumExpiry, TenantUsage, TurnWatch

A = TenantName("a")
NOW = 1_000 * MS
LOW = MS // 10
MOST = (1 << 64) - 1
DEVICE = 3


WAITS = TenantUsage(0, 0, 1)


def turn(seen: TenantUsage = WAITS, *, queue_end_ns: int = NOW, until: int = 10 * MS) -> TurnWatch:
    return start(A, seen, queue_end_ns, NOW, until_spent_ns=until, queued_ns=LOW)


def test_a_turn_is_over_when_its_grant_is_used_up_and_its_queue_nearly_dry() -> None:
    turn_watch = poll(turn(), TenantUsage(4 * MS, 4 * MS, 1), NOW + MS)
    assert turn_watch.next_ns == NOW + MS + MAX_POLL_NS
    turn_watch = poll(turn_watch, TenantUsage(11 * MS, 4 * MS, 1), NOW + 7 * MS)
    assert turn_watch.used_up == QuantumExpiry(NOW + 7 * MS, 4 * MS)
    turn_watch = poll(turn_watch, TenantUsage(11 * MS, 3 * MS, 1), NOW + 9 * MS)
    assert turn_watch.next_ns == NOW + 11 * MS - LOW  # when no more than that is left
    turn_watch = poll(turn_watch, TenantUsage(11 * MS, 1 * MS, 1), turn_watch.next_ns)
    assert turn_watch.next_ns == EXPIRED
    assert turn_watch.used_up == QuantumExpiry(NOW + 7 * MS, 4 * MS)


def test_what_the_books_say_is_queued_counts_where_it_is_less() -> None:
    turn_watch = poll(turn(), TenantUsage(11 * MS, 0, 1), NOW + 5 * MS)
    assert turn_watch.next_ns == EXPIRED


def test_its_own_word_counts_where_its_queue_lasts_longer() -> None:
    """Its charges alone say the earliest: there may have been gaps."""
    turn_watch = poll(turn(), TenantUsage(11 * MS, 4 * MS, 1, NOW + 13 * MS), NOW + 11 * MS)
    assert turn_watch.next_ns == NOW + 13 * MS - LOW


def test_a_turn_is_over_when_its_holder_has_nothing_to_do() -> None:
    turn_watch = turn(TenantUsage(0, MS, 0), queue_end_ns=NOW + MS)
    assert turn_watch.next_ns == NOW + 2 * MS
    assert poll(turn_watch, TenantUsage(0, MS, 0), NOW + MS // 2).next_ns > NOW  # its work is under way
    assert poll(turn_watch, TenantUsage(0, MS, 1), NOW + 2 * MS).next_ns > NOW  # it waits
    assert poll(turn_watch, TenantUsage(MS, MS, 0), NOW + 2 * MS).next_ns > NOW  # it goes on
    assert poll(turn_watch, TenantUsage(0, MS, 0), NOW + 2 * MS).next_ns == EXPIRED


def test_one_whose_turn_nobody_else_wants_is_granted_more_in_time() -> None:
    turn_watch = start(A, TenantUsage(0, 0, 1), NOW, NOW, until_spent_ns=30 * MS, queued_ns=ANY_BACKLOG_NS)
    turn_watch = poll(turn_watch, TenantUsage(29 * MS, 4 * MS, 1), NOW + 25 * MS)
    assert turn_watch.next_ns > NOW
    assert poll(turn_watch, TenantUsage(30 * MS, 4 * MS, 1), NOW + 26 * MS).next_ns == EXPIRED


def test_books_that_were_begun_anew_end_it() -> None:
    assert poll(turn(TenantUsage(5, 0, 1)), TenantUsage(4, 0, 1), NOW + MS).next_ns == EXPIRED


@pytest.mark.parametrize(
    "seen", [TenantUsage(MOST, MOST, 1), TenantUsage(10 * MS, 0, 1), TenantUsage(0, 0, 0)]
)
def test_whatever_the_books_say_it_is_not_looked_at_too_soon(seen: TenantUsage) -> None:
    assert turn(seen, until=min(MOST, seen.spent_ns)).next_ns >= NOW + FIRST_POLL_NS


def look_in_c(turn_watch: TurnWatch, seen: TenantUsage, now_ns: int) -> TurnWatch:
    """The same by csrc/node/turn_watch.c; the figures are of three processes, one of which has gone."""
    books = ffi.new("struct gl_usage *")
    books.header.slots_used = 3
    books.device[DEVICE].spent_ns = seen.spent_ns
    for slot, generation in enumerate((1, 2, 3)):
        books.slot[slot].generation = generation
        books.slot[slot].account[DEVICE].outstanding_ns = (seen.outstanding_ns + slot // 2) // 2
        books.slot[slot].account[DEVICE].waiting = seen.waiting if slot else 0
        books.slot[slot].account[DEVICE].queue_end_ns = seen.queue_end_ns if slot else 1
    books.slot[1].account[DEVICE].waiting = 1 - seen.waiting
    books.slot[1].account[DEVICE].queue_end_ns = MOST
    mine = ffi.new("struct gl_turn_watch *", (books, DEVICE, 0, *turn_watch[1:]))
    lib.gl_turn_watch_poll(mine, now_ns)
    return TurnWatch(
        turn_watch.tenant,
        mine.spent_ns,
        mine.queue_end_ns,
        mine.begin_ns,
        mine.until_spent_ns,
        mine.queued_ns,
        EXPIRED if mine.expired else mine.next_ns,
        mine.used_up_ns,
        mine.left_ns,
    )


def test_c_and_python_say_the_same() -> None:
    """On turns with gaps, jumps and nonsense, looked at when they say and at other times."""
    dice = random.Random(1)  # noqa: S311
    endings = 0
    for _ in range(3000):
        now = NOW
        seen = TenantUsage(dice.choice([0, 5 * MS, 1 << 63]), dice.choice([0, 3 * MS]), dice.randrange(2))
        turn_watch = start(
            A,
            seen,
            now + dice.randrange(-5, 5) * MS,
            now,
            until_spent_ns=seen.spent_ns + dice.randrange(12) * MS,
            queued_ns=dice.choice([LOW, ANY_BACKLOG_NS]),
        )
        for _ in range(12):
            now = turn_watch.next_ns + dice.choice([0, 0, MS // 20, 3 * MS])
            spent = seen.spent_ns + dice.choice([0, 0, MS // 3, 2 * MS, -1 if seen.spent_ns else 0])
            end = dice.choice([0, now - MS, now + 2 * MS, MOST])
            seen = TenantUsage(spent, dice.choice([0, MS // 2, 4 * MS, MOST >> 1]), dice.randrange(2), end)
            expected = poll(turn_watch, seen, now)
            assert look_in_c(turn_watch, seen, now) == expected, (turn_watch, seen, now)
            turn_watch = expected
            if turn_watch.next_ns == EXPIRED:
                endings += 1
                break
    assert endings > 1000


def test_books_that_are_not_due_are_left_alone() -> None:
    turn_watch = turn()
    assert look_in_c(turn_watch, TenantUsage(11 * MS, 0, 1), turn_watch.next_ns - 1) == turn_watch
