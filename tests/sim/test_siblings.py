# SPDX-License-Identifier: Apache-2.0
"""Processes of one tenant, and streams of one process, on one bucket: what each used is charged, and once."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from limiter.live_quota import LiveTenant

from .conftest import Program, wait_until
from .machine import MS, WARM_S, WINDOW_S, ended, held


class Worker:
    """A process that launches as told."""

    def __init__(self, start_process: Any, path: Path, environ: dict[str, str]) -> None:
        self.process = start_process([path], env=environ, stdin=-1)

    def begin(self, count: int, ns: int = MS, *, stream: int = 0, wait: bool = True) -> None:
        self.process.stdin.write(f"{stream} {count} {ns} {int(wait)}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        assert self.process.stdout.readline() == "done\n", self.process.stderr.read()

    def launch(self, count: int, ns: int = MS, *, stream: int = 0, wait: bool = True) -> None:
        self.begin(count, ns, stream=stream, wait=wait)
        self.end()


@pytest.mark.slow
def test_processes_of_a_tenant_draw_on_one_bucket(machine: Any) -> None:
    def measure() -> list[tuple[float, float]]:
        it = machine(GPULIMIT_COMPUTE="40")
        seconds = f"seconds={WARM_S + WINDOW_S + 1}"
        running = [it.load(seconds, f"kernel={ns}") for ns in (300_000, 1 * MS)]
        time.sleep(WARM_S)
        (share,) = it.shares()
        for process in running:
            assert ended(process)["launches"] > 50  # neither is starved
        return [(share, 40)]

    held(measure)


@pytest.mark.parametrize("who", ["processes", "streams", "one away for long"])
def test_work_that_is_looked_at_late_is_charged(
    machine: Any, program: Program, start_process: Any, who: str
) -> None:
    """The other's later work has been accounted for by then."""
    it = machine(GPULIMIT_COMPUTE="100")
    one = Worker(start_process, program("compute/steps"), it.environ)
    other = one if who == "streams" else Worker(start_process, program("compute/steps"), it.environ)

    def run(worker: Worker, count: int, stream: int = 0) -> None:
        """Nobody looks at the launches' end: that is where it would be seen."""
        before = it.sample()[1]
        worker.launch(count, stream=stream, wait=False)
        wait_until(lambda: it.sample()[1] - before >= count * MS)

    def others(count: int) -> None:
        run(other, count, stream=1)

    one.launch(1)  # there is a machine
    for _ in range(10):  # what a launch costs is known
        run(one, 1)
        others(1)
    spent, busy = it.books().devices[0].spent_ns, it.sample()[1]
    for _ in range(5):
        run(one, 20)
        if who == "one away for long":
            time.sleep(0.7)
        others(20)
        others(1)  # which looks at the twenty
    run(one, 1)
    charged, used = it.books().devices[0].spent_ns - spent, it.sample()[1] - busy
    assert charged == pytest.approx(used, rel=0.1)


@pytest.mark.parametrize("lengths", [(1 * MS,), (1 * MS, 9 * MS)], ids=["alike", "short and long"])
def test_work_at_the_same_time_is_charged_once(
    machine: Any, program: Program, start_process: Any, lengths: tuple[int, ...]
) -> None:
    """Two processes in turns on the card: neither's time is taken for the other's too, nor for overlap."""
    it = machine(GPULIMIT_COMPUTE="100")
    both = [Worker(start_process, program("compute/steps"), it.environ) for _ in range(2)]

    def launch(count: int, *, wait: bool) -> None:
        for worker in both:
            for i in range(count):
                worker.launch(1, lengths[i % len(lengths)], wait=wait)

    launch(10, wait=True)
    spent, busy = it.books().devices[0].spent_ns, it.sample()[1]
    for _ in range(5):
        launch(24 // len(lengths), wait=False)
        launch(2, wait=True)
    charged, used = it.books().devices[0].spent_ns - spent, it.sample()[1] - busy
    assert charged == pytest.approx(used, rel=0.15)
    for worker in both:
        worker.launch(20, 1 * MS, wait=False)
    for process in it.books().processes:
        assert process.accounts[0].outstanding_ns > 10 * MS


def test_one_whose_sibling_has_gone_learns_what_its_launches_cost_as_if_there_had_been_none(
    machine: Any, program: Program, start_process: Any
) -> None:
    """What the sibling left unfinished in its account is nobody's work any more."""

    def charged_at_once(it: Any) -> int:
        one = Worker(start_process, program("compute/steps"), it.environ)
        for _ in range(10):
            one.launch(1, 1 * MS)
            one.launch(1, 9 * MS)
        for _ in range(5):
            one.launch(1, 1 * MS, wait=False)
            one.launch(1, 9 * MS, wait=False)
        (process,) = (p for p in it.books().processes if p.pid == one.process.pid)
        return int(process.accounts[0].outstanding_ns)

    def both() -> tuple[int, int]:
        it = machine(GPULIMIT_COMPUTE="100")
        sibling = Worker(start_process, program("compute/steps"), it.environ)
        for _ in range(8):
            sibling.launch(1)
        sibling.launch(3, wait=False)
        sibling.process.kill()  # one that exits would look after its work itself
        sibling.process.wait()
        assert it.books().processes[0].accounts[0].outstanding_ns
        time.sleep(0.1)
        return charged_at_once(it), charged_at_once(machine(GPULIMIT_COMPUTE="100"))

    # A stalled host lets some samples say no more than the most that a launch can have taken, here or there.
    tried = []
    while len(tried) < 5:
        beside, alone = both()
        tried.append((beside, alone))
        if beside == pytest.approx(alone, rel=0.3):
            return
    pytest.fail(f"(after a sibling, alone) = {tried}")


@pytest.mark.slow
def test_time_charged_too_much_to_one_is_no_credit_and_no_debt_of_the_others(machine: Any) -> None:
    """It comes off what the tenant spent, whoever launches next; a limit begins with an even account."""

    def measure() -> list[tuple[float, float]]:
        it = machine(GPULIMIT_COMPUTE="100")
        bursts = ("kernel=500000", "burst=10000", "period=50000")
        it.load("seconds=6", "firsts=8", "first=150000000", *bursts)
        time.sleep(1.8)
        it.load("seconds=4", *bursts)
        time.sleep(WARM_S)
        with LiveTenant(it.tenant) as live:
            live.set(0, compute_percent=20)
            time.sleep(0.5)
            before = [p.accounts[0].launches["kernel"] for p in it.books().processes]
            share = it.shares(1.5)[0]
            after = [p.accounts[0].launches["kernel"] for p in it.books().processes]
        assert all(b - a > 20 for a, b in zip(before, after, strict=True)), (before, after)
        return [(share, 20)]

    held(measure)


def test_a_limit_that_comes_forgives_what_was_spent_once(
    machine: Any, program: Program, start_process: Any, points_library: Path
) -> None:
    """Two processes begin to be held to it at the same moment; one of them is stopped in between."""
    it = machine(GPULIMIT_COMPUTE="100")
    point = {"LD_PRELOAD": str(points_library), "GPULIMIT_TEST_POINT": f"pacing:1:{int(signal.SIGSTOP)}"}
    one = Worker(start_process, program("compute/steps"), it.environ | point)
    other = Worker(start_process, program("compute/steps"), it.environ)
    for worker in (one, other):
        worker.launch(10, 30 * MS)
    with LiveTenant(it.tenant) as live:
        live.set(0, compute_percent=10)
    one.begin(1)
    wait_until(lambda: state_of(one.process.pid) == "T")
    other.launch(1)
    one.process.send_signal(signal.SIGCONT)
    one.end()
    device = it.books().devices[0]
    assert device.spent_ns > 400 * MS
    assert device.granted_ns - device.spent_ns < 100 * MS


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
