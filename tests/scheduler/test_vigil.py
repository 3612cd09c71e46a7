# SPDX-License-Identifier: Apache-2.0
"""What is looked for during a turn, in Python and, which must say the same, in C."""

from __future__ import annotations

import random

import pytest
from limiter._native import ffi, lib

from hypervisor.model import TenantName
from hypervisor.scheduler.turn_watch import ANY_QUEUE_NS, FIRST_LOOK_NS, MAX_POLL_NS, OVER, begin, look
from hypervisor.scheduler.types import MS, Seen, UsedUp, Vigil

A = TenantName("a")
NOW = 1_000 * MS
LOW = MS // 10
MOST = (1 << 64) - 1
DEVICE = 3


WAITS = Seen(0, 0, 1)


def turn(seen: Seen = WAITS, *, queue_end_ns: int = NOW, until: int = 10 * MS) -> Vigil:
    return begin(A, seen, queue_end_ns, NOW, until_spent_ns=until, queued_ns=LOW)


def test_a_turn_is_over_when_its_grant_is_used_up_and_its_queue_nearly_dry() -> None:
    vigil = look(turn(), Seen(4 * MS, 4 * MS, 1), NOW + MS)
    assert vigil.next_ns == NOW + MS + MAX_POLL_NS
    vigil = look(vigil, Seen(11 * MS, 4 * MS, 1), NOW + 7 * MS)
    assert vigil.used_up == UsedUp(NOW + 7 * MS, 4 * MS)
    vigil = look(vigil, Seen(11 * MS, 3 * MS, 1), NOW + 9 * MS)
    assert vigil.next_ns == NOW + 11 * MS - LOW  # when no more than that is left
    vigil = look(vigil, Seen(11 * MS, 1 * MS, 1), vigil.next_ns)
    assert vigil.next_ns == OVER
    assert vigil.used_up == UsedUp(NOW + 7 * MS, 4 * MS)


def test_what_the_books_say_is_queued_counts_where_it_is_less() -> None:
    vigil = look(turn(), Seen(11 * MS, 0, 1), NOW + 5 * MS)
    assert vigil.next_ns == OVER


def test_its_own_word_counts_where_its_queue_lasts_longer() -> None:
    """Its charges alone say the earliest: there may have been gaps."""
    vigil = look(turn(), Seen(11 * MS, 4 * MS, 1, NOW + 13 * MS), NOW + 11 * MS)
    assert vigil.next_ns == NOW + 13 * MS - LOW


def test_a_turn_is_over_when_its_holder_has_nothing_to_do() -> None:
    vigil = turn(Seen(0, MS, 0), queue_end_ns=NOW + MS)
    assert vigil.next_ns == NOW + 2 * MS
    assert look(vigil, Seen(0, MS, 0), NOW + MS // 2).next_ns > NOW  # its work is under way
    assert look(vigil, Seen(0, MS, 1), NOW + 2 * MS).next_ns > NOW  # it waits
    assert look(vigil, Seen(MS, MS, 0), NOW + 2 * MS).next_ns > NOW  # it goes on
    assert look(vigil, Seen(0, MS, 0), NOW + 2 * MS).next_ns == OVER


def test_one_whose_turn_nobody_else_wants_is_granted_more_in_time() -> None:
    vigil = begin(A, Seen(0, 0, 1), NOW, NOW, until_spent_ns=30 * MS, queued_ns=ANY_QUEUE_NS)
    vigil = look(vigil, Seen(29 * MS, 4 * MS, 1), NOW + 25 * MS)
    assert vigil.next_ns > NOW
    assert look(vigil, Seen(30 * MS, 4 * MS, 1), NOW + 26 * MS).next_ns == OVER


def test_books_that_were_begun_anew_end_it() -> None:
    assert look(turn(Seen(5, 0, 1)), Seen(4, 0, 1), NOW + MS).next_ns == OVER


@pytest.mark.parametrize("seen", [Seen(MOST, MOST, 1), Seen(10 * MS, 0, 1), Seen(0, 0, 0)])
def test_whatever_the_books_say_it_is_not_looked_at_too_soon(seen: Seen) -> None:
    assert turn(seen, until=min(MOST, seen.spent_ns)).next_ns >= NOW + FIRST_LOOK_NS


def look_in_c(vigil: Vigil, seen: Seen, now_ns: int) -> Vigil:
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
    mine = ffi.new("struct gl_vigil *", (books, DEVICE, 0, *vigil[1:]))
    lib.gl_vigil_look(mine, now_ns)
    return Vigil(
        vigil.tenant,
        mine.spent_ns,
        mine.queue_end_ns,
        mine.begin_ns,
        mine.until_spent_ns,
        mine.queued_ns,
        OVER if mine.over else mine.next_ns,
        mine.used_up_ns,
        mine.left_ns,
    )


def test_c_and_python_say_the_same() -> None:
    """On turns with gaps, jumps and nonsense, looked at when they say and at other times."""
    dice = random.Random(1)  # noqa: S311
    endings = 0
    for _ in range(3000):
        now = NOW
        seen = Seen(dice.choice([0, 5 * MS, 1 << 63]), dice.choice([0, 3 * MS]), dice.randrange(2))
        vigil = begin(
            A,
            seen,
            now + dice.randrange(-5, 5) * MS,
            now,
            until_spent_ns=seen.spent_ns + dice.randrange(12) * MS,
            queued_ns=dice.choice([LOW, ANY_QUEUE_NS]),
        )
        for _ in range(12):
            now = vigil.next_ns + dice.choice([0, 0, MS // 20, 3 * MS])
            spent = seen.spent_ns + dice.choice([0, 0, MS // 3, 2 * MS, -1 if seen.spent_ns else 0])
            end = dice.choice([0, now - MS, now + 2 * MS, MOST])
            seen = Seen(spent, dice.choice([0, MS // 2, 4 * MS, MOST >> 1]), dice.randrange(2), end)
            expected = look(vigil, seen, now)
            assert look_in_c(vigil, seen, now) == expected, (vigil, seen, now)
            vigil = expected
            if vigil.next_ns == OVER:
                endings += 1
                break
    assert endings > 1000


def test_books_that_are_not_due_are_left_alone() -> None:
    vigil = turn()
    assert look_in_c(vigil, Seen(11 * MS, 0, 1), vigil.next_ns - 1) == vigil
