# SPDX-License-Identifier: Apache-2.0
"""The policy in force: limits, sharing, suspension; and policy files that are not what they should be."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from limiter._native import ffi, lib

from ..conftest import wait_until
from .conftest import MIB, MS, NOT_PERMITTED, OUT_OF_MEMORY, ScriptedProcess, Start, launched, spin_s
from .stand_in import Daemon

FREE_S = 0.05
"""Time in which a program that is not held back does what it is asked, on a busy machine."""

# ---- limits ----


def test_memory_limits_of_the_policy_hold_and_change_live(daemon: Daemon, start: Start) -> None:
    daemon.allow(memory_bytes=16 * MIB)
    process = start({"GPULIMIT_TENANT": None})
    assert process.ask("init") == "0"
    assert process.ask("total") == f"0 {16 * MIB}"
    assert process.ask(f"alloc {8 * MIB}") == "0"
    assert process.ask(f"alloc {9 * MIB}") == OUT_OF_MEMORY
    daemon.allow(memory_bytes=32 * MIB)
    assert process.ask(f"alloc {9 * MIB}") == "0"
    daemon.allow(memory_bytes=4 * MIB)
    assert process.ask("alloc 1") == OUT_OF_MEMORY
    assert process.ask("total") == f"0 {4 * MIB}"


@pytest.mark.parametrize(
    ("source", "own", "policy", "later", "total"),
    [
        ("config", "8MiB", 16, 32, 8),  # the environment can only lower
        ("pod", "32MiB", 16, 16, 16),
        ("environment", "16MiB", 16, 32, 32),  # it was the proposal: the daemon may raise it
        ("environment", "8MiB", 16, 32, 8),  # less than the tenant has: still in force
    ],
)
def test_the_environment_lowers_the_policy_and_proposes_where_it_may(
    daemon: Daemon, start: Start, source: str, own: str, policy: int, later: int, total: int
) -> None:
    daemon.source = source
    daemon.allow(memory_bytes=policy * MIB)
    process = start(GPULIMIT_MEMORY=own)
    assert process.ask("init") == "0"
    assert process.ask("total") != "0"
    daemon.allow(memory_bytes=later * MIB)
    assert process.ask("total") == f"0 {total * MIB}"


def test_a_card_that_the_policy_does_not_name_gets_nothing_until_it_does(
    daemon: Daemon, start: Start
) -> None:
    daemon.policy.c.device[0].ready = 0
    process = start()
    assert process.ask("init") == "0"
    assert process.ask("alloc 1") == OUT_OF_MEMORY
    daemon.allow(memory_bytes=16 * MIB)
    assert process.ask("alloc 1") == "0"


def test_compute_limits_of_the_policy_hold_and_change_live(daemon: Daemon, start: Start) -> None:
    daemon.allow(percent=100)
    process = start()
    assert process.ask("init") == "0"
    assert spin_s(process, 2 * MS, 100) < 0.4  # free: 0.2 s
    daemon.allow(percent=25)
    assert 0.9 < spin_s(process, 2 * MS, 200) < 2.2  # 0.4 s of work, 0.1 s of it in hand
    daemon.allow(percent=100)
    assert spin_s(process, 2 * MS, 100) < 0.4


def test_time_spent_without_a_limit_is_no_debt_to_a_later_one(daemon: Daemon, start: Start) -> None:
    process = start()
    assert process.ask("init") == "0"
    for _ in range(25):  # what a launch costs is known after the first
        spin_s(process, 5 * MS, 4)
    assert daemon.spent_ns() > 400 * MS
    daemon.allow(percent=25)
    assert spin_s(process, 2 * MS, 40) < 0.9  # 80 ms of work; with the debt it would be 1.5 s and more


def test_a_raised_compute_limit_wakes_those_who_wait(daemon: Daemon, start: Start) -> None:
    daemon.allow(percent=1)
    process = start()
    assert process.ask("init") == "0"
    process.say(f"spin {5 * MS} 20")
    time.sleep(0.5)
    daemon.allow(percent=100)
    begin = time.monotonic()
    assert process.hear().startswith("0 ")
    assert time.monotonic() - begin < 0.1 + 0.1 + FREE_S  # 100 ms of work are left at most


def test_a_process_below_its_tenant_is_held_to_its_own_limit(daemon: Daemon, start: Start) -> None:
    slow, fast = start(GPULIMIT_COMPUTE="20"), start()
    assert slow.ask("init") == fast.ask("init") == "0"
    slow.say(f"spin {2 * MS} 100")  # 0.2 s of work
    assert spin_s(fast, 2 * MS, 50) < 0.5
    assert float(slow.hear().split()[1]) > 0.7


# ---- sharing ----


def test_launches_go_as_far_as_they_are_granted(daemon: Daemon, sharer: ScriptedProcess) -> None:
    assert sharer.ask(f"loop {MS}") == "0"
    begun = wait_until(lambda: waiting(daemon))
    assert begun == 1
    before = launched(sharer)
    assert before <= 1
    for _ in range(3):
        spent = daemon.spent_ns()
        daemon.grant(spent + 20 * MS)
        wait_until(lambda spent=spent: daemon.spent_ns() >= spent + 20 * MS)
        wait_until(lambda: waiting(daemon))
        time.sleep(0.1)
        assert daemon.spent_ns() < spent + 20 * MS + 4 * MS  # one launch more, and what it was misjudged by
    assert 50 <= launched(sharer) <= 75
    daemon.grant(0, shared=0)
    wait_until(lambda: launched(sharer) > 200)


def waiting(daemon: Daemon) -> int:
    return sum(int(daemon.usage.c.slot[i].account[0].waiting) for i in range(8))


def outstanding_ns(daemon: Daemon) -> int:
    return sum(int(daemon.usage.c.slot[i].account[0].outstanding_ns) for i in range(8))


def test_a_grant_wakes_at_once(daemon: Daemon, sharer: ScriptedProcess) -> None:
    assert sharer.ask(f"loop {MS}") == "0"
    delays = []
    for _ in range(10):
        wait_until(lambda: waiting(daemon) and outstanding_ns(daemon) == 0)
        time.sleep(0.02)
        before = daemon.spent_ns()
        begin = time.monotonic()
        daemon.grant(before + 1)
        while daemon.spent_ns() == before:
            assert time.monotonic() - begin < 5
        delays.append(time.monotonic() - begin)
    assert sorted(delays)[5] < 0.005, delays  # half of them; by the 50 ms of a look it would be 0.025


def test_a_grant_may_begin_later_and_then_does_without_a_wake(
    daemon: Daemon, sharer: ScriptedProcess
) -> None:
    assert sharer.ask(f"loop {MS}") == "0"
    delays = []
    for _ in range(10):
        wait_until(lambda: waiting(daemon) and outstanding_ns(daemon) == 0)
        time.sleep(0.02)
        before, start = daemon.spent_ns(), time.monotonic_ns() + 15 * MS
        daemon.grant(before + 1, start_ns=start)
        while daemon.spent_ns() == before:
            assert time.monotonic_ns() - start < 5_000 * MS
        delays.append((time.monotonic_ns() - start) / MS)
    assert min(delays) > 0
    assert sorted(delays)[5] < 5, delays


def test_a_grant_that_begins_in_the_far_future_begins_now(daemon: Daemon, sharer: ScriptedProcess) -> None:
    daemon.grant(1 << 60, start_ns=1 << 63)
    assert sharer.ask(f"loop {MS}") == "0"
    wait_until(lambda: launched(sharer) > 20)


def test_no_more_is_unfinished_than_the_run_ahead(daemon: Daemon, sharer: ScriptedProcess) -> None:
    daemon.grant(1 << 60, run_ahead_ns=4 * MS)
    assert sharer.ask(f"loop {MS // 2}") == "0"
    most, end = 0, time.monotonic() + 0.7
    before, spent = launched(sharer), daemon.spent_ns()
    begin = time.monotonic()
    while time.monotonic() < end:
        most = max(most, outstanding_ns(daemon))
    seconds = time.monotonic() - begin
    assert 2 * MS <= most <= 5 * MS
    assert launched(sharer) - before > 0.7 * seconds * 2000  # the card does not run dry
    assert 0.7 < (daemon.spent_ns() - spent) / (seconds * 1e9) < 1.2


def test_the_doorbell_rings_for_work_that_comes_up_for_a_wait_and_for_work_that_ends(
    daemon: Daemon, sharer: ScriptedProcess
) -> None:
    def at_rest() -> bool:
        return waiting(daemon) == 1 and outstanding_ns(daemon) == 0

    def bell() -> int:
        return int(daemon.usage.c.header.doorbell)

    assert sharer.ask(f"loop {5 * MS}") == "0"
    for _ in range(3):
        wait_until(at_rest)
        time.sleep(0.05)
        before, spent = bell(), daemon.spent_ns()
        daemon.grant(spent + 1)
        wait_until(lambda spent=spent: daemon.spent_ns() > spent)
        wait_until(at_rest)
        time.sleep(0.02)
        assert bell() == before + 3


# ---- suspending ----


@pytest.mark.parametrize("shared", [0, 1])
def test_suspend_and_resume_take_less_than_a_tenth_of_a_second(
    daemon: Daemon, start: Start, shared: int
) -> None:
    process = start()
    assert process.ask("init") == "0"
    daemon.grant(1 << 60, run_ahead_ns=4 * MS, shared=shared)
    assert process.ask(f"loop {MS}") == "0"
    wait_until(lambda: launched(process) > 20)
    daemon.allow(suspended=1)
    time.sleep(0.1)
    stopped = launched(process)
    time.sleep(0.3)
    assert launched(process) == stopped
    daemon.allow(suspended=0)
    time.sleep(0.1)
    assert launched(process) > stopped


# ---- hostile files ----


def spoil(daemon: Daemon, how: str) -> None:
    path, header = daemon.policy.path, daemon.policy.c.header
    match how:
        case "magic" | "version" | "size" | "ready":
            setattr(header, how, getattr(header, how) + 1)
        case "tenant":
            header.tenant = b"another"
        case "short" | "long":
            size = ffi.sizeof("struct gl_policy")
            path.unlink()
            path.write_bytes(bytes(ffi.buffer(daemon.policy.c)) + bytes(1))
            os.truncate(path, size - 1 if how == "short" else size + 1)
        case "empty" | "missing":
            path.unlink()
            path.touch()
            if how == "missing":
                path.unlink()
        case "link":
            path.rename(f"{path}.real")
            path.symlink_to(f"{path}.real")
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "directory":
            path.rename(f"{path}.real")
            path.mkdir()
        case "writable":
            path.chmod(0o666)


@pytest.mark.parametrize(
    "how",
    [
        "magic",
        "version",
        "size",
        "ready",
        "tenant",
        "short",
        "long",
        "empty",
        "missing",
        "link",
        "fifo",
        "directory",
        "writable",
    ],
)
def test_a_policy_file_that_is_not_what_it_should_be_is_never_used(
    daemon: Daemon, start: Start, how: str
) -> None:
    spoil(daemon, how)
    try:
        process = start()
        assert process.ask("init") == NOT_PERMITTED
        [line] = process.end().splitlines()
        assert "names a policy that cannot be used" in line
    finally:
        if daemon.policy.path.is_dir():
            daemon.policy.path.rmdir()
        Path(f"{daemon.policy.path}.real").unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["empty", "missing", "damaged"])
def test_a_usage_segment_that_is_not_there_or_damaged_is_not_made_anew(
    daemon: Daemon, start: Start, how: str
) -> None:
    path = daemon.usage.path
    if how == "damaged":
        daemon.usage.c.header.magic = 5
    else:
        path.unlink()
        if how == "empty":
            path.touch(0o600)
    process = start()
    assert process.ask("init") == NOT_PERMITTED
    [line] = process.end().splitlines()
    assert str(path) in line


def test_nonsense_in_the_policy_never_means_no_limit(daemon: Daemon, start: Start) -> None:
    entry = daemon.policy.c.device[0]
    process = start()
    assert process.ask("init") == "0"
    spin_s(process, MS, 20)
    entry.compute_limit_percent = 1000
    process.say(f"spin {5 * MS} 10")
    time.sleep(0.5)
    entry.compute_limit_percent = 100
    lib.gl_node_policy_grant(daemon.policy.c, 0, ffi.new("struct gl_grant *"))
    assert float(process.hear().split()[1]) > 0.4
    entry.memory_limit_bytes = (1 << 64) - 1
    code, total = process.ask("total").split()
    assert code == "0" and 0 < int(total) < 1 << 40
