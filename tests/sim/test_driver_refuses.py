# SPDX-License-Identifier: Apache-2.0
"""The driver refuses calls that the library makes for itself: the limit holds all the same.

What cannot be measured by events is measured by the wall clock, which counts more than was used; what cannot
be measured at all does not go.
"""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from limiter import tenant_status, tenants

from .conftest import ROOT, wait_until
from .machine import MS, WARM_S, Machine, ended

LIMIT = 30
WINDOW_S = 1.5
POINTS = 4.0
"""Above the limit, in so short a window: what was saved up before it."""
SAID = "refuses timing events"
EVENTS = ("cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventElapsedTime")
OWN_CALLS = {"cuStreamCreate": 1, "cuCtxGetCurrent": 0}
"""Calls of the load itself before its first launch."""
OF_THE_PROGRAM = (
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuLaunch",
    "cuGraph",
    "cuMem",
    "cuModule",
    "cuLibrary",
)


def own_calls() -> list[str]:
    """Return the driver's functions that the library calls without being called by that name."""
    found = re.findall(r"^CU_CALL\((cu\w+)", (ROOT / "csrc" / "hooks.def").read_text(), re.MULTILINE)
    assert "cuEventCreate" in found
    return [name for name in found if not name.startswith(OF_THE_PROGRAM)]


def shares(machine: Any, faults: list[str], *options: str) -> list[tuple[float, Machine, Any]]:
    """Share of a limited load under each fault, side by side; what is refused has none."""
    each = [machine(GPULIMIT_COMPUTE=str(LIMIT)) for _ in faults]
    running = []
    for it, fault in zip(each, faults, strict=True):
        argv = [it.load_program, f"seconds={WARM_S + WINDOW_S + 1}", *options]
        running.append(it.start_process(argv, env=it.environ | {"GPULIMIT_SIM_FAULTS": fault}))
    time.sleep(WARM_S + 0.3)
    before = [it.sample() for it in each]
    time.sleep(WINDOW_S)
    after = [it.sample() for it in each]
    return [
        (100 * (b[1] - a[1]) / (b[0] - a[0]), it, process)
        for a, b, it, process in zip(before, after, each, running, strict=True)
    ]


def fault_of(name: str, code: int = 2) -> str:
    return f"{name}:fail={code}:after={OWN_CALLS.get(name, 0)}"


@pytest.mark.parametrize("name", [*EVENTS, "cuStreamCreate"])
def test_without_events_the_limit_holds_and_the_process_says_so(machine: Any, name: str) -> None:
    ((share, it, process),) = shares(machine, [fault_of(name)], "kernel=2000000")
    assert LIMIT / 2 < share < LIMIT + POINTS
    (row,) = [r for r in tenant_status.rows(*[tenants.snapshot()] * 2) if r.tenant == it.tenant]
    assert row.is_coarse
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err.count(SAID)) == (0, 1), err


@pytest.mark.parametrize(
    "options",
    [("kernel=100000",), ("kernel=20000000",), ("kernel=500000", "graph=4"), ("kernel=300000", "threads=3")],
)
def test_without_events_the_limit_holds_for_every_kind_of_work(
    machine: Any, options: tuple[str, ...]
) -> None:
    ((share, _, process),) = shares(machine, ["cuEventCreate:fail=2"], *options)
    assert 3 < share < LIMIT + POINTS
    process.wait(timeout=20)


@pytest.mark.parametrize("name", EVENTS)
def test_events_that_fail_only_later_are_no_way_past_the_limit(machine: Any, name: str) -> None:
    ((share, it, _),) = shares(
        machine, [f"{name}:fail=2:after=200"], "kernel=1000000", "first=3000000", "firsts=5"
    )
    assert LIMIT / 3 < share < LIMIT + POINTS, it.books()


def test_events_that_come_back_are_used_again(machine: Any) -> None:
    """The driver refuses two of them; some seconds later the process is no longer degraded."""
    it: Machine = machine(GPULIMIT_COMPUTE=str(LIMIT))
    process = it.load("seconds=5", "kernel=1000000", GPULIMIT_SIM_FAULTS="cuEventRecord:fail=2:count=2")

    def is_coarse() -> bool:
        return any(a.is_coarse for p in it.books().processes for a in p.accounts)

    wait_until(is_coarse)
    wait_until(lambda: not is_coarse(), 5)
    time.sleep(0.3)
    assert abs(it.shares(WINDOW_S)[0] - LIMIT) < POINTS
    ended(process)


def test_the_wall_clock_of_a_stream_that_does_not_tell_either_is_that_of_waiting_for_it(machine: Any) -> None:
    ((share, _, process),) = shares(machine, ["cuEventCreate:fail=2,cuStreamQuery:fail=2"], "kernel=2000000")
    assert LIMIT / 2 < share < LIMIT + POINTS
    assert process.wait(timeout=20) == 0


def test_what_cannot_be_measured_at_all_is_refused_if_it_is_limited(machine: Any) -> None:
    silent = ",".join(f"{name}:fail=2" for name in ("cuEventCreate", "cuStreamQuery", "cuStreamSynchronize"))
    ((share, _, process),) = shares(machine, [silent], "kernel=2000000")
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, share) == (1, 0)
    assert "gave 800" in out


def test_without_a_limit_nothing_is_refused_or_slowed(machine: Any) -> None:
    it: Machine = machine(GPULIMIT_COMPUTE="100")
    silent = ",".join(f"{name}:fail=2" for name in ("cuEventCreate", "cuStreamQuery"))
    process = it.load("seconds=3", "kernel=1000000", GPULIMIT_SIM_FAULTS=silent)
    time.sleep(WARM_S)
    assert it.shares(WINDOW_S)[0] > 95
    assert ended(process)["launches"] > 0
    assert it.books().devices[0].used_ns > 2000 * MS


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kernel_ns", [100_000, 2 * MS])
def test_no_call_that_the_library_makes_for_itself_lets_the_limit_go_when_it_fails(
    machine: Any, kernel_ns: int
) -> None:
    """A program either stays within its limit or has its calls refused."""
    names, wrong = own_calls(), {}
    for at in range(0, len(names), 6):
        some = names[at : at + 6]
        for name, (share, _, process) in zip(
            some, shares(machine, [fault_of(name) for name in some], f"kernel={kernel_ns}"), strict=True
        ):
            out, _ = process.communicate(timeout=30)
            if share > LIMIT + POINTS or (share < 3 and process.returncode == 0):
                wrong[name] = (share, process.returncode, out[-300:])
    assert not wrong
