# SPDX-License-Identifier: Apache-2.0
"""Commands, a daemon that goes away and comes back, and the manners of the thread."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..conftest import wait_until
from .conftest import MIB, MS, OUT_OF_MEMORY, UUID, ScriptedProcess, Start, launched, spin_s
from .stand_in import Daemon, response

# ---- commands ----


def test_commands_are_obeyed_in_order_and_acknowledged(daemon: Daemon, start: Start) -> None:
    process = start()
    assert process.ask("init") == "0"
    names = ["suspend", "resume", "refresh", "drain", "checkpoint", "restore", "dance"]
    for name in names:
        daemon.tell(name)
    wait_until(lambda: len(daemon.results) == len(names))
    assert [r["number"] for r in daemon.results] == list(range(1, len(names) + 1))
    assert [r["ok"] for r in daemon.results] == [True] * 4 + [False] * 3
    assert [r["message"] for r in daemon.results[4:]] == ["not supported", "not supported", "unknown command"]
    wait_until(lambda: daemon.polls[-1].endswith(f"after={len(names)}&wait=25"))


def test_a_command_is_taken_within_a_tenth_of_a_second(daemon: Daemon, start: Start) -> None:
    process = start()
    assert process.ask("init") == "0"
    wait_until(lambda: daemon.polls)
    time.sleep(0.3)
    begin = time.monotonic()
    daemon.tell("refresh")
    wait_until(lambda: daemon.results)
    assert time.monotonic() - begin < 0.1


def test_a_daemon_that_talks_nonsense_is_not_run_over(daemon: Daemon, start: Start) -> None:
    asked: list[str] = []

    def nonsense(_: Daemon, method: str, path: str, __: bytes) -> bytes | None:
        if path == "/v1/workers":
            return None
        asked.append(path)
        answers = [
            response(204),
            response(200, {"Gpulimit-Command": "0 suspend"}),
            response(500),
            b"\xff\n",
            b"",
        ]
        return answers[len(asked) % 5]

    daemon.manners = nonsense
    process = start()
    assert process.ask("init") == "0"
    time.sleep(2)
    assert 2 < len(asked) < 12
    assert process.ask("alloc 1") == "0"


# ---- the daemon away ----


def test_with_the_daemon_dead_memory_holds_and_time_goes_by_the_wall_clock(
    daemon: Daemon, sharer: ScriptedProcess
) -> None:
    daemon.allow(memory_bytes=16 * MIB, percent=50)
    wait_until(lambda: daemon.polls)
    daemon.stop()
    assert 0.3 < spin_s(sharer, MS, 200) < 1.6  # 0.2 s of work at 50 %
    assert sharer.ask(f"alloc {17 * MIB}") == OUT_OF_MEMORY
    assert sharer.ask(f"alloc {8 * MIB}") == "0"
    assert sharer.end() == ""


def test_with_the_daemon_dead_a_request_without_a_limit_holds(daemon: Daemon, start: Start) -> None:
    daemon.allow(compute_request_percent=25)
    process = start()
    assert process.ask("init") == "0"
    assert spin_s(process, 5 * MS, 60) < 0.6
    daemon.stop()
    time.sleep(0.6)
    spin_s(process, 5 * MS, 10)
    assert spin_s(process, 5 * MS, 60) > 0.9  # 0.3 s of work
    daemon.start()
    time.sleep(0.2)
    spin_s(process, 5 * MS, 10)
    assert spin_s(process, 5 * MS, 60) < 0.6


def test_who_waits_for_a_grant_goes_on_at_once_when_the_daemon_dies(
    daemon: Daemon, sharer: ScriptedProcess
) -> None:
    assert sharer.ask(f"loop {MS}") == "0"
    wait_until(lambda: daemon.polls)
    time.sleep(0.3)
    before = launched(sharer)  # nothing is granted
    daemon.stop()
    gone = time.monotonic()
    wait_until(lambda: launched(sharer) > before)
    assert time.monotonic() - gone < 0.4  # the heartbeat was fresh for longer


def test_a_connection_that_breaks_while_the_heart_beats_changes_nothing_for_long(
    daemon: Daemon, sharer: ScriptedProcess
) -> None:
    daemon.allow(percent=50)
    daemon.grant(1 << 60)
    wait_until(lambda: daemon.polls)
    daemon.manners = lambda *_: b""  # hangs up on everybody
    assert spin_s(sharer, MS, 500) < 0.8  # what is granted goes, not 50 %


def test_a_daemon_that_hangs_is_as_good_as_dead(daemon: Daemon, sharer: ScriptedProcess) -> None:
    daemon.is_beating = False
    assert 0.2 < spin_s(sharer, MS, 200) < 1.5  # there is no limit: it goes on when the heartbeat is old


def test_a_process_registers_again_within_a_second_of_the_daemon_s_return(
    daemon: Daemon, start: Start
) -> None:
    process = start()
    assert process.ask("init") == "0"
    wait_until(lambda: daemon.polls)
    for again in range(2, 4):
        daemon.stop()
        time.sleep(0.4)
        daemon.start()
        begin = time.monotonic()
        wait_until(lambda again=again: len(daemon.registrations) == again)
        assert time.monotonic() - begin < 1
    assert daemon.registrations[0] == daemon.registrations[-1]
    daemon.commands.clear()
    daemon.tell("refresh")
    wait_until(lambda: daemon.results)
    assert process.end() == ""


def test_a_restarted_daemon_s_new_policy_is_the_one_in_force(daemon: Daemon, start: Start) -> None:
    daemon.allow(memory_bytes=16 * MIB)
    process = start()
    assert process.ask("init") == "0"
    wait_until(lambda: daemon.polls)
    old = daemon.policy
    daemon.stop()
    old.path.unlink()
    daemon.new_policy([bytes(16), UUID])
    daemon.allow(1, memory_bytes=32 * MIB)
    daemon.start()
    wait_until(lambda: process.ask("total") == f"0 {32 * MIB}")
    old.path.touch()
    old.close()


def test_a_process_that_is_not_taken_back_keeps_its_last_limits(daemon: Daemon, start: Start) -> None:
    daemon.allow(memory_bytes=16 * MIB)
    process = start()
    assert process.ask("init") == "0"
    wait_until(lambda: daemon.polls)
    daemon.stop()
    daemon.manners = lambda _, method, __, ___: response(403 if method == "POST" else 404)
    daemon.start()
    time.sleep(1)
    assert process.ask("total") == f"0 {16 * MIB}"
    assert process.ask(f"spin {MS} 3").startswith("0 ")
    assert process.end() == ""


# ---- manners of the thread ----


def test_the_thread_has_all_signals_blocked(daemon: Daemon, start: Start) -> None:
    process = start()
    assert process.ask("init") == "0"
    task = wait_until(process.agent)
    fields = dict(
        line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line
    )
    # Not KILL and STOP, which cannot be, nor the two that libc keeps for setuid and cancelling.
    left = {number for number in range(1, 65) if not int(fields["SigBlk"], 16) >> (number - 1) & 1}
    assert left == {9, 19, 32, 33}
    own = Path(f"/proc/{process.pid}/status").read_text()
    assert "SigBlk:\t0000000000000000" in own


def test_a_program_ends_when_its_own_threads_have(daemon: Daemon, start: Start) -> None:
    process = start()
    assert process.ask("init") == "0"
    wait_until(process.agent)
    process.say("leave")
    assert process.process.wait(timeout=5) == 0


def test_a_forked_child_registers_for_itself(daemon: Daemon, start: Start, books: Any) -> None:
    process = start()
    assert process.ask("init") == "0"
    child = int(process.ask("fork"))
    assert daemon.pids == [process.pid]
    process.ask("init")  # CUDA does not follow a fork; the library does
    assert daemon.pids == [process.pid, child]
    assert {p.pid for p in books().processes} == {process.pid, child}
    wait_until(lambda: any(f"/{daemon.workers[child]}/" in poll for poll in daemon.polls))
    daemon.tell("refresh")
    wait_until(lambda: len(daemon.results) == 2)
    process.end()


def test_a_program_that_takes_the_thread_s_descriptor_keeps_what_it_has(daemon: Daemon, start: Start) -> None:
    process = start()
    assert process.ask("init") == "0"
    wait_until(lambda: daemon.polls)
    assert process.ask("take") == "1"
    time.sleep(2.5)  # the thread looks at its socket once a second
    assert process.ask("kept") == "1"
    daemon.tell("refresh")
    wait_until(lambda: daemon.results)


def test_nvml_alone_shows_the_quota_without_a_thread(daemon: Daemon, start: Start) -> None:
    daemon.allow(memory_bytes=16 * MIB)
    process = start()
    assert process.ask("nvml") == f"0 {16 * MIB}"
    assert daemon.registrations[0]["view"] is True
    assert process.agent() is None
    assert process.ask("init") == "0"
    assert "view" not in daemon.registrations[1]
    wait_until(process.agent)
    assert process.ask("total") == f"0 {16 * MIB}"


def test_nvml_alone_does_not_wait_and_cuda_does_later(daemon: Daemon, start: Start) -> None:
    daemon.stop()
    process = start(GPULIMIT_WAIT="20")
    begin = time.monotonic()
    code, total = process.ask("nvml").split()
    assert time.monotonic() - begin < 2
    assert code == "0" and int(total) > 16 * MIB
    process.say("init")
    time.sleep(0.3)
    daemon.start()
    assert process.hear() == "0"
    assert process.end() == ""
