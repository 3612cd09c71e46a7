# SPDX-License-Identifier: Apache-2.0
"""The library's thread gives back what pools keep unused, for a process that makes no call."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.daemon.conftest import Daemon
from tests.sim.sharing import MIB, Member

SMALL = {"GPULIMIT_SIM_PROFILE": "small"}


@pytest.fixture
def silent(daemon: Callable[..., Daemon], member: Callable[[str], Member], tenant: str) -> Member:
    """Start a process whose pool keeps 600 of the tenant's 1024 MiB, and which then makes no call."""
    daemon(env=SMALL)
    one = member(tenant)
    assert one("keep_all") == 0
    result, pointer = one("alloc_async", 600 * MIB)
    assert (result, one("free_async", pointer), one("wait")) == (0, 0, 0)
    return one


def test_a_process_that_makes_no_call_gives_back_what_its_pool_keeps(
    silent: Member, member: Callable[[str], Member], tenant: str
) -> None:
    other = member(tenant)
    assert other.used() == 600 * MIB
    assert other("alloc", 900 * MIB)[0] == 0
    assert silent.used() == 900 * MIB


def test_while_it_captures_it_gives_nothing(
    silent: Member, member: Callable[[str], Member], tenant: str
) -> None:
    assert silent("capture", True) == 0
    other = member(tenant)
    assert other("alloc", 900 * MIB)[0] == 2
    assert silent("capture", False) == 0
    assert other("alloc", 900 * MIB)[0] == 0


def test_a_refusal_waits_for_no_thread_of_a_process_that_uses_all_that_it_has(
    daemon: Callable[..., Daemon], member: Callable[[str], Member], tenant: str
) -> None:
    daemon(env=SMALL)
    one, other = member(tenant), member(tenant)
    assert one("keep_all") == 0
    assert one("alloc_async", 600 * MIB)[0] == 0
    assert one("wait") == 0
    begin = time.monotonic()
    for _ in range(10):
        assert other("alloc", 900 * MIB)[0] == 2
    assert time.monotonic() - begin < 5
