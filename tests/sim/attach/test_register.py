# SPDX-License-Identifier: Apache-2.0
"""Registering with the daemon, waiting for it, and what it may not answer."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from limiter._native import lib

from ..conftest import Program, wait_until
from .conftest import MIB, NOT_PERMITTED, ScriptedProcess, Start
from .stand_in import Daemon, response

# ---- registering ----


def test_a_process_registers_at_its_first_cuda_call_and_takes_what_the_daemon_says(
    daemon: Daemon, start: Start, books: Any
) -> None:
    process = start(GPULIMIT_MEMORY="40MiB", GPULIMIT_WEIGHT="7", POD_NAME='a "pod"\n', POD_NAMESPACE="x")
    assert daemon.registrations == []
    assert process.ask("init") == "0"
    [body] = daemon.registrations
    assert daemon.pids == [process.pid]
    assert (body["pid"], body["version"], body["name"]) == (
        process.pid,
        lib.GL_LAYOUT_VERSION,
        process_name(process.pid),
    )
    assert (body["pod_name"], body["pod_namespace"]) == ('a "pod"\n', "x")
    assert body["environment"] == {
        "GPULIMIT_MEMORY": "40MiB",
        "GPULIMIT_WEIGHT": "7",
        "GPULIMIT_TENANT": daemon.tenant,
    }
    assert "view" not in body
    [row] = books().processes
    assert (row.pid, row.host_pid, row.start_ticks) == (process.pid, process.pid, body["start_ticks"])
    assert process.end() == ""


def process_name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_the_tenant_is_the_daemon_s_whatever_the_environment_asks_for(daemon: Daemon, start: Start) -> None:
    process = start(GPULIMIT_TENANT="another")
    assert process.ask("init") == "0"
    assert daemon.registrations[0]["tenant"] == "another"
    assert not Path("/dev/shm/gpulimit.u.another").exists()
    assert wait_until(lambda: daemon.usage.c.device[0].ready) == 1


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (403, {"Gpulimit-Error": "pod x may not use a GPU"}, "pod x may not use a GPU"),
        (409, {"Gpulimit-Error": "30 percent are asked for, 20 are free"}, "20 are free"),
        (422, {}, "status 422"),
    ],
)
@pytest.mark.parametrize("on_loss", ["closed", "open"])
def test_a_refused_process_says_why_once_and_gets_no_gpu(
    daemon: Daemon, start: Start, status: int, headers: dict[str, str], says: str, on_loss: str
) -> None:
    daemon.manners = lambda *_: response(status, headers, b"{}")
    process = start(GPULIMIT_ON_LOSS=on_loss)
    assert process.ask("init") == NOT_PERMITTED
    assert process.ask("alloc 5") == NOT_PERMITTED
    assert process.agent() is None
    [line] = process.end().splitlines()
    assert "the daemon refuses this process: " in line and says in line


WRONG = {
    "garbage": b"\x00\xff" * 1000,
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no headers": response(200),
    "another status": response(201),
    "not found": response(404),
    "a redirection": response(302, {"Location": "/"}),
    "a name with a slash": response(200, {"Gpulimit-Worker": "../x"}),
    "a pid that is none": response(200, {"Gpulimit-Host-Pid": "-1"}),
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000,
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_a_wrong_answer_is_one_clear_line_and_no_gpu(daemon: Daemon, start: Start, what: str) -> None:
    daemon.manners = lambda *_: WRONG[what]
    process = start()
    assert process.ask("init") == NOT_PERMITTED
    [line] = process.end().splitlines()
    assert "gives a wrong answer: " in line and "every CUDA call of this process is refused" in line


@pytest.mark.parametrize("what", sorted(WRONG))
def test_on_loss_open_a_wrong_answer_leaves_the_environment_s_quota(
    daemon: Daemon, start: Start, what: str
) -> None:
    daemon.manners = lambda *_: WRONG[what]
    process = start(GPULIMIT_ON_LOSS="open", GPULIMIT_MEMORY="16MiB")
    assert process.ask("init") == "0"
    assert process.ask("total") == f"0 {16 * MIB}"
    assert process.agent() is None
    assert process.end() == ""


@pytest.mark.parametrize("missing", ["Worker", "Host-Pid", "Tenant", "Usage", "Policy"])
def test_a_header_that_is_missing_or_another_tenant_s_is_a_wrong_answer(
    daemon: Daemon, start: Start, missing: str
) -> None:
    daemon.workers[1] = "w"
    headers = daemon.headers(1)
    del headers[f"Gpulimit-{missing}"]
    daemon.manners = lambda *_: response(200, headers)
    assert start().ask("init") == NOT_PERMITTED
    if missing in ("Usage", "Policy"):
        headers[f"Gpulimit-{missing}"] = "gpulimit.u.other"
        assert start().ask("init") == NOT_PERMITTED


# ---- waiting for it ----


def test_a_process_waits_for_a_daemon_that_is_still_starting(daemon: Daemon, start: Start) -> None:
    daemon.stop()
    process = start(GPULIMIT_WAIT="20")
    process.say("init")
    time.sleep(0.5)
    daemon.start()
    begin = time.monotonic()
    assert process.hear() == "0"
    assert time.monotonic() - begin < 1


def test_a_daemon_that_says_that_it_is_not_ready_is_asked_again(daemon: Daemon, start: Start) -> None:
    asked = iter([response(503), b"", response(500), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal"])
    daemon.manners = lambda *_: next(asked, None)
    assert start().ask("init") == "0"


FULL = response(409, {"Gpulimit-Error": "60% is held by another"}, b"{}")


def test_a_start_waits_for_what_others_hold_where_that_is_asked_for(daemon: Daemon, start: Start) -> None:
    asked = iter([FULL, FULL])
    daemon.manners = lambda *_: next(asked, None)
    process = start(GPULIMIT_WAIT="30", GPULIMIT_LOG="warn")
    begin = time.monotonic()
    assert process.ask("init") == "0"
    assert time.monotonic() - begin >= 0.9
    [line] = process.end().splitlines()
    assert "waits for its start: 60% is held by another" in line


def test_a_start_that_waited_in_vain_says_why(daemon: Daemon, start: Start) -> None:
    daemon.manners = lambda *_: FULL
    process = start(GPULIMIT_WAIT="1.2")
    begin = time.monotonic()
    assert process.ask("init") == NOT_PERMITTED
    assert 0.6 < time.monotonic() - begin < 5
    [line] = process.end().splitlines()
    assert "the daemon refuses this process: 60% is held by another" in line


@pytest.mark.parametrize("status", [403, 422])
def test_other_refusals_are_not_waited_for(daemon: Daemon, start: Start, status: int) -> None:
    asked = iter([response(status, {"Gpulimit-Error": "never"})])
    daemon.manners = lambda *_: next(asked, None)
    assert start(GPULIMIT_WAIT="30").ask("init") == NOT_PERMITTED


@pytest.mark.parametrize("on_loss", [None, "closed", "open"])
def test_without_an_answer_the_wait_is_over_in_time_and_on_loss_decides(
    daemon: Daemon, start: Start, on_loss: str | None
) -> None:
    daemon.stop()
    process = start({"GPULIMIT_ON_LOSS": on_loss}, GPULIMIT_WAIT="0.7", GPULIMIT_MEMORY="16MiB")
    begin = time.monotonic()
    answer = process.ask("init")
    assert 0.5 < time.monotonic() - begin < 2.5
    assert answer == ("0" if on_loss == "open" else NOT_PERMITTED)
    if on_loss == "open":
        assert process.ask("total") == f"0 {16 * MIB}"
        assert process.end() == ""
    else:
        [line] = process.end().splitlines()
        assert "does not answer: No such file or directory" in line


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nGpulimit-Worker: w"])
def test_a_daemon_that_falls_silent_does_not_hold_the_process_for_longer_than_the_wait(
    daemon: Daemon, start: Start, said: bytes
) -> None:
    def silent(*_: Any) -> bytes | None:
        time.sleep(3)
        return said

    daemon.manners = silent
    process = start(GPULIMIT_WAIT="1")
    begin = time.monotonic()
    assert process.ask("init") == NOT_PERMITTED
    assert time.monotonic() - begin < 2.5
    assert "does not answer: it is silent" in process.end()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GPULIMIT_WAIT", "soon"),
        ("GPULIMIT_WAIT", "-1"),
        ("GPULIMIT_WAIT", "1e9"),
        ("GPULIMIT_WAIT", ""),
        ("GPULIMIT_ON_LOSS", "maybe"),
        ("GPULIMIT_SOCKET", "relative.sock"),
        ("GPULIMIT_SOCKET", "/" + "x" * 108),
    ],
)
def test_a_wrong_setting_is_named_and_never_no_limit(
    daemon: Daemon, start: Start, variable: str, value: str
) -> None:
    process = start({variable: value})
    assert process.ask("init") == NOT_PERMITTED
    [line] = process.end().splitlines()
    assert variable in line


def test_three_hundred_processes_register_at_once(
    daemon: Daemon, program: Program, start_process: Any, env: dict[str, str]
) -> None:
    begin = time.monotonic()
    crowd = ScriptedProcess(start_process([program("scripted")], env=env, stdin=subprocess.PIPE))
    assert crowd.ask("crowd 300") == "300 0"
    assert len(set(daemon.pids)) == 300
    assert time.monotonic() - begin < 30


# ---- without a daemon ----


def test_without_a_daemon_there_is_no_thread_and_no_socket(start: Start) -> None:
    process = start({"GPULIMIT_SOCKET": None}, GPULIMIT_MEMORY="16MiB")
    assert process.ask("init") == "0"
    assert process.agent() is None
    assert not [t for t in targets(process.pid) if t.startswith("socket:")]
    assert process.end() == ""


def targets(pid: int) -> list[str]:
    return [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]
