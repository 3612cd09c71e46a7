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
