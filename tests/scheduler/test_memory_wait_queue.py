# SPDX-License-Identifier: Apache-2.0
"""Who is told that memory may have come free, and when."""

from __future__ import annotations

from hypervisor.model import TenantName
from hypervisor.scheduler.memory_wait_queue import MIN_NOTIFY_INTERVAL_NS, MemoryWaitQueue, MemoryWaitState

A, B, C = TenantName("a"), TenantName("b"), TenantName("c")
STEP = MIN_NOTIFY_INTERVAL_NS


def seen(waiting: int = 0, freed: int = 0, waits: int = 0) -> MemoryWaitState:
    return MemoryWaitState(0, waiting, freed, waits)


def test_those_who_wait_are_told_when_another_gives_back() -> None:
    queue = MemoryWaitQueue()
    first = queue.step(0, {A: seen(), B: seen(waiting=1, waits=1), C: seen(waiting=2, waits=2)})
    assert (first.is_wanted, first.notify) == (True, frozenset())
    second = queue.step(STEP, {A: seen(freed=1), B: seen(1, waits=1), C: seen(2, waits=2)})
    assert second.notify == {B, C}
    third = queue.step(2 * STEP, {A: seen(freed=1), B: seen(1, waits=1), C: seen(2, waits=2)})
    assert third.notify == frozenset()
    assert (queue.counters.notified, queue.counters.waiting) == (2, 2)


def test_waits_are_counted_as_the_books_count_them() -> None:
    queue = MemoryWaitQueue()
    queue.step(0, {A: seen(waits=70)})  # from before this daemon
    queue.step(1, {A: seen(waits=73)})
    assert queue.counters.waits == 3
    queue.step(2, {A: seen(waits=0)})  # books begun anew, or a lie
    queue.step(3, {A: seen(waits=1 << 60)})
    assert queue.counters.waits <= 3 + (1 << 20)


def test_who_leaves_gives_back_and_so_does_what_is_in_no_books() -> None:
    queue = MemoryWaitQueue()
    queue.step(0, {A: seen(), B: seen(1)})
    assert queue.step(STEP, {B: seen(1)}).notify == {B}
    assert queue.step(2 * STEP, {B: seen(1)}, freed_elsewhere=True).notify == {B}


def test_a_tenant_that_gives_back_all_the_time_is_not_passed_on_each_time() -> None:
    queue = MemoryWaitQueue()
    told = 0
    for i in range(1000):
        decision = queue.step(i * STEP // 100, {A: seen(freed=i), B: seen(1)})
        told += len(decision.notify)
    assert 8 <= told <= 11
    assert queue.is_due_at_ns is not None
    assert queue.step(queue.is_due_at_ns, {A: seen(freed=999), B: seen(1)}).notify == {B}
    assert queue.is_due_at_ns is None


def test_nothing_is_wanted_when_nobody_waits() -> None:
    queue = MemoryWaitQueue()
    queue.step(0, {A: seen(), B: seen()})
    decision = queue.step(STEP, {A: seen(freed=5), B: seen()}, freed_elsewhere=True)
    assert (decision.is_wanted, decision.notify, queue.is_due_at_ns) == (False, frozenset(), None)
    # Who begins to wait afterwards has looked by itself and is not told of the past.
    assert queue.step(2 * STEP, {A: seen(freed=5), B: seen(1)}).notify == frozenset()
