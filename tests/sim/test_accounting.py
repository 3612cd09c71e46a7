# SPDX-License-Identifier: Apache-2.0
"""What a program used of the GPU is charged once it has ended, whatever the program did last.

The simulated card runs kernels of a given length one after the other, so the truth is a product.
"""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from limiter import segment

from .conftest import Program
from .machine import MS, Host, Machine

US = 1_000
NEAR = 0.01
HOST_BOUND_NEAR = 0.06
"""For kernels that take the simulated driver as long to queue up as to run: single ones are measured."""


@pytest.fixture
def burst(machine: Any, program: Program, run_process: Any) -> Any:
    """Run tests/c/compute/burst.c; return what it asked for and what its tenant was charged, in ns."""

    def run(*options: str, expect: int = 0, **environ: str) -> tuple[int, int]:
        it: Machine = machine(**{"GPULIMIT_COMPUTE": "100"} | environ)
        ended = run_process([program("compute/burst"), *options], env=it.environ, expect=expect)
        return int(ended.stdout), it.books().devices[0].used_ns

    return run


def charged(burst: Any, *options: str, near: float = NEAR, **more: Any) -> None:
    """Fail if the charge is off by more than so much; one more try if this host stalled."""
    for attempt in range(2):
        with Host() as host:
            true_ns, used_ns = burst(*options, **more)
        if used_ns == pytest.approx(true_ns, rel=near):
            return
        if not host.stalled or attempt:
            pytest.fail(f"{options}: {used_ns / MS:.2f} ms charged for {true_ns / MS:.2f}")


LENGTHS = [
    (5 * US, 4000),
    (50 * US, 1000),
    (500 * US, 20),
    (15 * MS, 40),
    (200 * MS, 3),
    (1000 * MS, 1),
]


@pytest.mark.parametrize(("kernel_ns", "count"), LENGTHS)
@pytest.mark.parametrize("percent", ["100", "99", "50"])
def test_a_burst_is_charged_whether_limited_or_not(
    burst: Any, kernel_ns: int, count: int, percent: str
) -> None:
    near = HOST_BOUND_NEAR if kernel_ns < 50 * US else NEAR
    charged(burst, f"kernel={kernel_ns}", f"count={count}", near=near, GPULIMIT_COMPUTE=percent)


@pytest.mark.parametrize("place", ["stream", "default", "thread", "streams"])
@pytest.mark.parametrize("wait", ["stream", "event", "context"])
def test_a_burst_is_charged_in_every_stream_and_by_every_wait(burst: Any, place: str, wait: str) -> None:
    """An event that the program records is behind its own stream alone."""
    if (place, wait) in (("streams", "stream"), ("streams", "event"), ("thread", "event")):
        wait = "context"
    charged(burst, "kernel=3000000", "count=30", f"in={place}", f"wait={wait}")


@pytest.mark.parametrize("end", ["return", "exit", "fast", "destroy", "lose", "kill"])
def test_a_burst_is_charged_however_the_program_ends_after_it(burst: Any, end: str) -> None:
    charged(burst, "kernel=3000000", "count=30", f"end={end}", expect=-9 if end == "kill" else 0)


@pytest.mark.parametrize("place", ["stream", "thread", "streams"])
@pytest.mark.parametrize("end", ["destroy", "lose"])
def test_work_that_the_end_of_its_context_waits_for_is_charged(burst: Any, place: str, end: str) -> None:
    """The program itself waits for nothing; the stream that one loses is gone before its work is done."""
    charged(burst, "kernel=5000000", "count=30", "wait=none", f"in={place}", f"end={end}")


def test_ending_a_context_is_not_charged_as_work_however_long_the_work_still_takes(burst: Any) -> None:
    """The driver takes a while to end a context. What it ran is known before that."""
    slow = {"GPULIMIT_SIM_FAULTS": "cuCtxDestroy_v2:delay_ms=2000"}
    charged(burst, "kernel=1300000000", "count=1", "wait=none", "end=destroy", **slow)


@pytest.mark.parametrize("end", ["return", "exit", "destroy"])
def test_work_that_the_program_never_waited_for_is_charged(burst: Any, end: str) -> None:
    """It only looks again and again whether the stream is idle."""
    charged(burst, "kernel=3000000", "count=30", "wait=poll", f"end={end}")


def test_launches_of_many_kinds_of_which_nothing_was_known_are_charged(burst: Any) -> None:
    charged(burst, "kernel=3000000", "count=42", "kinds=21")


def test_work_that_ends_with_its_process_is_charged_as_far_as_it_went(burst: Any) -> None:
    """Of ten seconds that were queued the card did some milliseconds."""
    began = time.monotonic_ns()
    true_ns, used_ns = burst("kernel=100000000", "count=100", "wait=none")
    assert true_ns == 10_000 * MS
    assert used_ns < time.monotonic_ns() - began


def test_one_that_is_killed_leaves_what_its_launches_are_known_to_cost(burst: Any) -> None:
    """Ten were waited for; of the others only the launches are known."""
    charged(burst, "kernel=5000000", "count=10", "rounds=4", "end=kill", expect=-9)


def test_processes_that_start_and_end_all_the_time_are_charged_together(
    machine: Any, program: Program, start_process: Any
) -> None:
    """Five at a time, of one tenant: what overlaps on the card counts once, and the card is full."""
    it: Machine = machine(GPULIMIT_COMPUTE="100")
    keeper = start_process([program("compute/burst"), "count=0", "pause=60000"], env=it.environ)
    options = ["kernel=1000000", "count=40"]
    done, running = 0, []
    for _ in range(40):
        running.append(start_process([program("compute/burst"), *options], env=it.environ))
        if len(running) == 5:
            done += int(running.pop(0).communicate(timeout=30)[0])
    for process in running:
        done += int(process.communicate(timeout=30)[0])
    used = it.books().devices[0].used_ns
    keeper.kill()
    assert used == pytest.approx(done, rel=2 * NEAR)


def test_the_report_of_a_run_has_all_of_it(program: Program, gpulimit: Any, sim_env: dict[str, str]) -> None:
    command = [program("compute/burst"), "kernel=15000000", "count=40"]
    ended = gpulimit("run", "--report", "--", *command, env=sim_env, expect=0)
    assert re.search(r"GPU time +(0\.60? s|600(\.\d+)? ms) spent", ended.stderr), ended.stderr


def test_a_share_is_never_above_the_whole_card(machine: Any) -> None:
    """Two seconds of work are charged at once when they are queued, and had over two seconds."""
    from limiter import tenant_status, tenants

    it: Machine = machine(GPULIMIT_COMPUTE="100")
    process = it.load("seconds=4", "kernel=4000000")
    shares = []
    before = tenants.snapshot()
    while process.poll() is None:
        time.sleep(0.25)
        after = tenants.snapshot()
        shares += [
            r.compute_share
            for r in tenant_status.rows(before, after)
            if r.tenant == it.tenant and r.processes
        ]
        before = after
    assert all(share is not None and share <= 1.0 for share in shares)
    # What is queued is had bit by bit: the process is seen at work in all looks but those at either end.
    middle = sorted(shares[2:-2])
    assert middle[len(middle) // 4] > 0.8, shares


def test_segments_say_what_is_still_queued() -> None:
    account = segment.Account(0, 0, {}, 1, 900, 500, {}, queue_end_ns=1300)
    assert account.queued_ns(1000) == 300
    assert account.queued_ns(100) == 500
    assert account.queued_ns(2000) == 0
