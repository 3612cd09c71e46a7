# SPDX-License-Identifier: Apache-2.0
"""The daemon's neighbours misbehave: NVML hangs or fails, systemd listens, the kernel is old."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from limiter._native import ffi, lib

from hypervisor.dispatcher.doorbells import BURST, Doorbells
from hypervisor.host import process_files, processes
from hypervisor.model import TenantName
from hypervisor.node.events import MINUTE_NS, EventLog
from hypervisor.scheduler.types import TurnWatch
from tests.daemon.conftest import eventually

NAME = TenantName("a")


def test_a_hanging_nvml_is_killed_and_asked_again(daemon) -> None:
    """The third look at memory hangs; the daemon goes on with what it knew, and tries again."""
    faults = "nvmlDeviceGetMemoryInfo:hang:after=2:count=1,nvmlDeviceGetMemoryInfo_v2:hang:after=2:count=1"
    node = daemon(env={"GPULIMIT_SIM_FAULTS": faults, "GPULIMITD_NVML_TIMEOUT": "500ms"})
    eventually(lambda: node.state()["counts"].get("nvml_failed"), within_s=8)
    state = node.state()
    assert "did not answer for 0.5 s" in str(state["events"])
    assert state["gpus"] and state["daemon"]["not_ready"] == []
    assert node.process.poll() is None
    children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
    first = children.read_text()
    eventually(lambda: (now := children.read_text()) and now != first, within_s=8)


def test_systemd_hears_when_the_daemon_is_ready_and_when_it_stops(daemon, run_dir) -> None:
    address = str(run_dir / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(10)
        node = daemon(env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"})
        assert listener.recv(100) == b"READY=1"
        assert listener.recv(100) == b"WATCHDOG=1"
        node.process.send_signal(signal.SIGTERM)
        heard = []
        while b"STOPPING=1" not in heard:
            heard.append(listener.recv(100))
    assert node.process.wait(timeout=10) == 0


def sleep_on(bells: Doorbells, word: object, seconds: float) -> float:
    """Return how long a sleep on one bell took."""
    begin = time.monotonic_ns()
    bells.listen({NAME: word})
    bells.hear()
    bells.looked_at(NAME, 0, begin)
    bells.wait(begin + int(seconds * 1e9))
    return (time.monotonic_ns() - begin) / 1e9


@pytest.mark.parametrize("poll", [False, True])
def test_a_ring_wakes_the_sleeper(poll: bool) -> None:
    """Also where the kernel cannot wait for many words: then within 2 ms and a bit."""
    bells, word = Doorbells(poll=poll), ffi.new("uint32_t *")
    assert 0.04 < sleep_on(bells, word, 0.05) < 0.2
    threading.Timer(0.05, lambda: lib.gl_bell_ring(word)).start()
    assert sleep_on(bells, word, 5) < 0.3
    assert sleep_on(bells, word, 5) < 0.02  # it has rung: no sleep at all
    threading.Timer(0.05, bells.ring).start()
    assert sleep_on(bells, ffi.new("uint32_t *"), 5) < 0.3


def test_who_has_rung_is_heard_until_looked_at() -> None:
    bells, one, two = Doorbells(), ffi.new("uint32_t *"), ffi.new("uint32_t *")
    other = TenantName("b")
    bells.listen({NAME: one, other: two})
    assert bells.hear() == [NAME, other]  # nobody has looked yet
    for name in (NAME, other):
        bells.looked_at(name, 0, 0)
    assert bells.hear() == []
    lib.gl_bell_ring(two)
    assert bells.hear() == [other] == bells.hear()
    bells.looked_at(other, 1, 0)
    assert bells.hear() == []


def test_a_tenant_that_rings_all_the_time_is_not_listened_to_for_a_while() -> None:
    bells, word = Doorbells(), ffi.new("uint32_t *")
    bells.listen({NAME: word})
    now = time.monotonic_ns()
    bells.looked_at(NAME, 0, now)
    word[0] = 3 * BURST
    bells.looked_at(NAME, 3 * BURST, now)
    lib.gl_bell_ring(word)
    begin = time.monotonic_ns()
    bells.wait(begin + 50_000_000)
    assert time.monotonic_ns() - begin >= 49_000_000  # sleeps on
    bells.listen({NAME: word})
    bells.looked_at(NAME, 3 * BURST + 1, now)
    assert bells.hear() == []
    bells.looked_at(NAME, 3 * BURST + 1, now + 2_000_000_000)
    lib.gl_bell_ring(word)
    begin = time.monotonic_ns()
    bells.wait(begin + 5_000_000_000)
    assert time.monotonic_ns() - begin < 1_000_000_000  # and listens again


def test_a_bell_whose_ring_is_no_news_wakes_nobody_and_is_heard_all_the_same() -> None:
    bells, word = Doorbells(), ffi.new("uint32_t *")
    bells.listen({NAME: word})
    bells.looked_at(NAME, 0, time.monotonic_ns())
    bells.mute(NAME, is_muted=True)
    lib.gl_bell_ring(word)
    begin = time.monotonic_ns()
    bells.wait(begin + 50_000_000)
    assert time.monotonic_ns() - begin >= 49_000_000
    assert bells.hear() == [NAME]
    bells.mute(NAME, is_muted=False)
    begin = time.monotonic_ns()
    bells.wait(begin + 5_000_000_000)
    assert time.monotonic_ns() - begin < 1_000_000_000


@pytest.mark.parametrize("poll", [False, True])
def test_a_turn_watch_that_has_expired_wakes_the_sleeper(poll: bool) -> None:
    bells, books, place = Doorbells(poll=poll), ffi.new("struct gl_usage *"), 5
    now = time.monotonic_ns()
    bells.set_turn_watch(place, TurnWatch(NAME, 0, now, now, 1000, 0), books, 0)
    books.header.slots_used = books.slot[0].generation = books.slot[0].account[0].waiting = 1
    bells.wait(now + 50_000_000)
    assert time.monotonic_ns() >= now + 50_000_000  # looks, and sleeps on
    assert not bells.is_expired(place)
    threading.Timer(0.05, lambda: setattr(books.device[0], "spent_ns", 1000)).start()
    bells.wait(now + 5_000_000_000)
    assert time.monotonic_ns() < now + 1_000_000_000
    assert bells.is_expired(place)
    assert bells.quantum_expiry(place)
    begin = time.monotonic_ns()
    bells.wait(begin + 5_000_000_000)
    assert time.monotonic_ns() - begin < 1_000_000_000  # until something is done about it
    bells.clear_turn_watches()
    assert not bells.is_expired(place)
    assert not bells.quantum_expiry(place)


def test_a_turn_watch_of_books_that_were_cut_short_expires(tmp_path) -> None:
    path = tmp_path / "books"
    path.write_bytes(bytes(ffi.sizeof("struct gl_usage")))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        file.truncate(0)
        books = ffi.from_buffer("struct gl_usage *", mapped)
        watch = ffi.new("struct gl_turn_watch *", {"usage": books, "until_spent_ns": 1})
        lib.gl_turn_watch_poll(watch, 1)
        assert watch.expired
        ffi.release(books)


def test_a_process_that_has_gone_is_not_taken_for_its_successor() -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read_end, 1)
        os._exit(0)
    pidfd = os.pidfd_open(child)
    assert not processes.has_ended(pidfd)
    os.write(write_end, b"x")
    os.waitpid(child, 0)
    assert processes.has_ended(pidfd)
    with pytest.raises(OSError):
        process_files.stat_of(child)
    for fd in (read_end, write_end, pidfd):
        os.close(fd)


def test_repeated_trouble_is_logged_once_a_minute() -> None:
    log = EventLog()
    assert log.may_log("refused", "a", now_ns=0)
    assert not log.may_log("refused", "a", now_ns=MINUTE_NS - 1)
    assert log.may_log("refused", "b", now_ns=1)
    assert log.may_log("refused", "a", now_ns=MINUTE_NS)


def test_the_probe_ends_with_its_parent(daemon) -> None:
    node = daemon()
    path = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
    (probe,) = path.read_text().split()
    node.stop(signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{probe}").exists() or state_of(probe) in "ZX", within_s=5)


def state_of(pid: str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_nothing_of_the_current_folder_is_imported(daemon, tmp_path, run_process) -> None:
    """`gpulimit daemon` runs as root, perhaps in a folder of somebody else's."""
    (tmp_path / "hypervisor.py").write_text("print('taken over')")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPULIMIT")}
    done = run_process([sys.executable, "-P", "-m", "limiter", "daemon", "--help"], env=env, cwd=tmp_path)
    assert "taken over" not in done.stdout
    assert done.stdout.startswith("usage: gpulimit daemon")
