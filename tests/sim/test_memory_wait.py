# SPDX-License-Identifier: Apache-2.0
"""Allocations that wait for memory, without a daemon: two processes of one tenant, or of two on one card."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from limiter import segment
from tests.conftest import Built, remove_segments
from tests.memory_client import KINDS, OK, OUT_OF_MEMORY, PLAIN, MemoryClient

from .conftest import Program, wait_until

MIB, GIB = 1 << 20, 1 << 30


Start = Callable[..., MemoryClient]


@pytest.fixture
def start(program: Program, start_process: Any, limited_env: dict[str, str], tenant: str) -> Iterator[Start]:
    """Start processes of the test's tenant: 1 GiB, and memory may be waited for."""
    binary = program("waiting/memory_client")

    def begin(tenant_of: str = tenant, wait: int | None = 20, memory: str = "1GiB") -> MemoryClient:
        more = {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": memory, "GPULIMIT_TENANT": tenant_of}
        if wait is not None:
            more["GPULIMIT_MEMORY_WAIT"] = str(wait)
        return MemoryClient(start_process([binary], env=limited_env | more, stdin=subprocess.PIPE))

    yield begin
    remove_segments(tenant)


def waiting(tenant: str) -> int:
    """Return how many threads of living processes wait."""
    return sum(a.memory_waiting for p in segment.read(tenant).processes if p.is_alive for a in p.accounts)


def settled(tenant: str) -> segment.Device:
    assert waiting(tenant) == 0
    return segment.read(tenant).devices[0]


@pytest.mark.parametrize("kind", KINDS)
def test_it_gets_what_another_process_of_the_tenant_gives_back(start: Start, tenant: str, kind: str) -> None:
    holder, waiter = start(), start()
    assert holder.ask("take", PLAIN, GIB - MIB)[0] == OK
    waiter.say("take", KINDS[kind], 4 * MIB)
    wait_until(lambda: waiting(tenant) == 1)
    assert holder.ask("give") == [OK]
    begin = time.monotonic()
    result, waited_ms, _ = waiter.hear()
    assert result == OK
    assert time.monotonic() - begin < 3
    device = settled(tenant)
    assert (device.memory_waits, device.refused, device.refused_by_card) == (1, 0, 0)
    assert 0 < device.memory_waited_ns <= (waited_ms + 1) * 1e6
    assert holder.ask("take", PLAIN, GIB - 64 * MIB)[0] == OK


def test_the_dead_wait_for_nobody_and_leave_their_memory(start: Start, tenant: str) -> None:
    holder, waiter = start(), start()
    assert holder.ask("take", PLAIN, GIB - MIB)[0] == OK
    waiter.say("take", PLAIN, 512 * MIB)
    wait_until(lambda: waiting(tenant) == 1)
    holder.process.kill()
    assert waiter.hear()[0] == OK
    other = start()
    other.say("take", PLAIN, 900 * MIB)
    wait_until(lambda: waiting(tenant) == 1)
    other.process.kill()
    other.process.wait(timeout=5)
    assert settled(tenant).used_bytes >= 512 * MIB


def test_after_its_time_it_is_refused_once(start: Start, tenant: str) -> None:
    holder, waiter = start(), start(wait=1)
    assert holder.ask("take", PLAIN, GIB - MIB)[0] == OK
    result, waited_ms, _ = waiter.ask("take", PLAIN, 512 * MIB)
    assert result == OUT_OF_MEMORY
    assert 1000 <= waited_ms < 4000
    assert settled(tenant).refused == 1


@pytest.mark.parametrize("wait", [None, 20])
def test_who_need_not_or_may_not_wait_is_refused_at_once(start: Start, tenant: str, wait: int | None) -> None:
    waiter = start(wait=wait)
    size = 900 * MIB if wait is None else 2 * GIB  # the second can never fit
    assert waiter.ask("take", PLAIN, 512 * MIB)[0] == OK
    result, waited_ms, _ = waiter.ask("take", PLAIN, size)
    assert result == OUT_OF_MEMORY
    assert waited_ms < 1000
    device = settled(tenant)
    assert (device.refused, device.memory_waits) == (1, 0)


def test_a_full_card_is_waited_for_without_anybody_telling(start: Start, tenant: str) -> None:
    """Two tenants that know nothing of each other: who waits looks again by itself."""
    holder, waiter = start(tenant_of=f"{tenant}-b", memory="4GiB"), start(memory="4GiB")
    assert holder.ask("take", PLAIN, 3 * GIB)[0] == OK
    waiter.say("take", PLAIN, 2 * GIB)
    wait_until(lambda: waiting(tenant) == 1)
    assert holder.ask("give") == [OK]
    assert waiter.hear()[0] == OK
    device = settled(tenant)
    assert (device.refused, device.refused_by_card) == (0, 0)


def test_a_full_card_refuses_after_the_time_and_says_that_it_was_the_card(start: Start, tenant: str) -> None:
    holder, waiter = start(tenant_of=f"{tenant}-b", memory="4GiB"), start(memory="4GiB", wait=1)
    assert holder.ask("take", PLAIN, 3 * GIB)[0] == OK
    result, waited_ms, _ = waiter.ask("take", PLAIN, 2 * GIB)
    assert (result, waited_ms >= 1000) == (OUT_OF_MEMORY, True)
    device = settled(tenant)
    assert (device.refused, device.refused_by_card, device.used_bytes) == (0, 1, 0)


def test_nothing_waits_while_a_stream_is_captured(start: Start, tenant: str) -> None:
    holder, waiter = start(), start()
    assert holder.ask("take", PLAIN, GIB - MIB)[0] == OK
    result, waited_ms = waiter.ask("capture", PLAIN, 512 * MIB)
    assert result == OUT_OF_MEMORY
    assert waited_ms < 1000
    assert settled(tenant).memory_waits == 0


def test_other_threads_and_signals_are_not_held_up(start: Start, tenant: str) -> None:
    holder, waiter = start(), start()
    assert holder.ask("take", PLAIN, 900 * MIB)[0] == OK
    for _ in range(2):
        assert waiter.ask("behind", PLAIN, 500 * MIB) == [OK]
    wait_until(lambda: waiting(tenant) == 2)
    begin = time.monotonic()
    for kind in (PLAIN, KINDS["async"], KINDS["vmm"]):
        assert waiter.ask("take", kind, MIB)[0] == OK
        assert waiter.ask("give") == [OK]
    assert time.monotonic() - begin < 3
    os.kill(waiter.process.pid, signal.SIGUSR1)
    wait_until(lambda: waiter.ask("take", PLAIN, MIB)[2] == 1)
    assert holder.ask("give") == [OK]
    assert sorted([waiter.hear()[0], waiter.hear()[0]]) == [OK, OK]
    waiter.say("take", PLAIN, 500 * MIB)
    wait_until(lambda: waiting(tenant) == 1)
    waiter.process.terminate()
    assert waiter.process.wait(timeout=5) == -signal.SIGTERM


def test_a_wrong_value_is_refused(gpulimit: Any, limited_env: dict[str, str], built: Built) -> None:
    for value in ("0", "5s", "86401", ""):
        done = gpulimit("run", "--memory-wait", value, "--", "true")
        assert done.returncode == 2
        assert "--memory-wait" in done.stderr


def test_status_shows_who_waits(start: Start, gpulimit: Any, tenant: str, sim_env: dict[str, str]) -> None:
    holder, waiter = start(), start()
    assert holder.ask("take", PLAIN, GIB - MIB)[0] == OK
    waiter.say("take", PLAIN, 512 * MIB)
    wait_until(lambda: waiting(tenant) == 1)
    env = sim_env | {"GPULIMIT_SOCKET": str(Path("/nonexistent"))}
    shown = gpulimit("status", "--over", "0", env=env).stdout
    assert "1 wait" in next(line for line in shown.splitlines() if line.startswith(tenant))


@pytest.mark.parametrize("gives_back", [True, False])
def test_a_context_is_waited_for_on_a_full_card(
    start: Start,
    program: Program,
    start_process: Any,
    limited_env: dict[str, str],
    tenant: str,
    gives_back: bool,
) -> None:
    """The first thing that a program needs; on this card one takes 600 MiB."""
    env = limited_env | {
        "GPULIMIT_SIM_PROFILE": "small",
        "GPULIMIT_SIM_SET": "context=600MiB",
        "GPULIMIT_MEMORY": "4GiB",
    }
    binary = program("waiting/memory_client")
    holder = MemoryClient(
        start_process([binary], env=env | {"GPULIMIT_TENANT": f"{tenant}-b"}, stdin=subprocess.PIPE)
    )
    assert holder.ask("take", PLAIN, 3 * GIB)[0] == OK
    wait = {"GPULIMIT_MEMORY_WAIT": "20" if gives_back else "1"}
    process = start_process([binary], env=env | wait, stdin=subprocess.PIPE)
    if gives_back:
        wait_until(lambda: waiting(tenant) == 1)
        assert holder.ask("give") == [OK]
        assert MemoryClient(process).ask("take", PLAIN, MIB)[0] == OK
    else:
        assert process.stdout.readline().strip() == str(OUT_OF_MEMORY)
        assert settled(tenant).refused_by_card + settled(tenant).refused == 1
