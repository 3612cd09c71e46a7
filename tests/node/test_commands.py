# SPDX-License-Identifier: Apache-2.0
"""Commands are given at least once, in order, and cannot fill the daemon."""

from __future__ import annotations

from hypervisor.node.commands import MAX_COMMANDS, CommandQueue
from hypervisor.node.events import MAX_EVENTS, EventLog


def test_a_command_is_given_again_until_it_is_acknowledged() -> None:
    queue = CommandQueue()
    queue.post("suspend")
    queue.post("refresh")
    first = queue.next(0)
    assert first is not None and first.name == "suspend"
    assert queue.next(0) == first
    second = queue.next(first.number)
    assert second is not None and second.name == "refresh"
    assert queue.next(second.number) is None


def test_the_same_command_twice_in_a_row_is_one() -> None:
    queue = CommandQueue()
    for _ in range(5):
        queue.post("refresh")
    assert len(queue) == 1
    command = queue.next(0)
    assert command is not None and command.number == 5


def test_a_worker_that_never_asks_fills_nothing() -> None:
    queue = CommandQueue()
    for number in range(10 * MAX_COMMANDS):
        queue.post("suspend" if number % 2 else "resume")
    assert len(queue) == MAX_COMMANDS
    oldest = queue.next(0)
    assert oldest is not None and oldest.number == 9 * MAX_COMMANDS + 1


def test_events_are_counted_and_the_newest_kept() -> None:
    log = EventLog()
    for number in range(2 * MAX_EVENTS):
        log.add("refused", f"{number}", now_ns=number)
    assert log.counts["refused"] == 2 * MAX_EVENTS
    assert [e.text for e in log.newest(2)] == [str(2 * MAX_EVENTS - 2), str(2 * MAX_EVENTS - 1)]
    assert len(list(log.newest())) == MAX_EVENTS
