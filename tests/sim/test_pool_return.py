# SPDX-License-Identifier: Apache-2.0
"""Memory that a process has freed in stream order is there for the tenant's other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .sharing import MIB, Member


@pytest.mark.parametrize("call", ["cuStreamSynchronize", "cuCtxSynchronize"])
def test_what_was_freed_and_waited_for_is_given_back_without_another_call_of_its_process(
    member: Callable[..., Member], books: Any, call: str
) -> None:
    one, other = member(), member()
    result, pointer = one("alloc_async", 600 * MIB)
    assert result == 0
    assert other("alloc", 900 * MIB)[0] == 2
    assert one("free_async", pointer) == 0
    assert one("wait", call) == 0
    assert books().devices[0].used_bytes == 0
    assert other("alloc", 900 * MIB)[0] == 0


def test_what_a_busy_process_s_pool_keeps_unused_is_given_back_before_another_is_refused(
    member: Callable[..., Member],
) -> None:
    one, other = member(), member()
    assert one("keep_all") == 0
    result, pointer = one("alloc_async", 600 * MIB)
    assert (result, one("free_async", pointer), one("wait")) == (0, 0, 0)
    assert one.info()[0] == (1024 - 600) * MIB  # kept
    one.tell("waiting", 3000)
    assert one.hear() == "begun"
    assert other("alloc", 900 * MIB)[0] == 0


def test_a_refusal_waits_for_no_process_that_has_nothing_to_give(
    member: Callable[..., Member], books: Any
) -> None:
    one, other = member(), member()
    assert one("alloc", 600 * MIB)[0] == 0
    for _ in range(20):
        assert other("alloc", 900 * MIB)[0] == 2
    assert books().devices[0].refused == 20


def keeps(one: Member) -> None:
    """Let a process keep 600 MiB in its pool, all of it unused."""
    assert one("keep_all") == 0
    result, pointer = one("alloc_async", 600 * MIB)
    assert (result, one("free_async", pointer), one("wait")) == (0, 0, 0)
    assert one.info()[0] == (1024 - 600) * MIB


@pytest.mark.parametrize("call", ["cuMemGetInfo_v2", "cuMemAlloc_v2", "cuCtxSetLimit"])
def test_a_process_gives_back_what_its_pool_keeps_at_its_next_call_of_any_kind(
    member: Callable[..., Member], call: str
) -> None:
    one, other = member(), member()
    keeps(one)
    one.tell("calling", call, 3000)
    assert one.hear() == "begun"
    assert other("alloc", 900 * MIB)[0] == 0


def test_what_a_process_keeps_is_given_back_by_each_that_is_asked(member: Callable[..., Member]) -> None:
    others = [member() for _ in range(3)]
    for one in others:
        assert one("keep_all") == 0
        result, pointer = one("alloc_async", 200 * MIB)
        assert (result, one("free_async", pointer), one("wait")) == (0, 0, 0)
        one.tell("calling", "cuMemGetInfo_v2", 3000)
        assert one.hear() == "begun"
    assert member()("alloc", 1000 * MIB)[0] == 0


def test_a_process_that_captures_is_not_disturbed_by_another_that_needs_memory(
    member: Callable[..., Member],
) -> None:
    one, other = member(), member()
    keeps(one)
    assert one("capture", True) == 0
    one.tell("calling", "cuMemGetInfo_v2", 200)
    assert one.hear() == "begun"
    assert other("alloc", 900 * MIB)[0] == 2
    assert one.hear() == 0
    assert one("capture", False) == 0
    one.tell("calling", "cuMemGetInfo_v2", 3000)
    assert one.hear() == "begun"
    assert other("alloc", 900 * MIB)[0] == 0
