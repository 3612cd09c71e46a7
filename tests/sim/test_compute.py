# SPDX-License-Identifier: Apache-2.0
"""Limits on GPU time, held against the simulated card's own record of when it was busy."""

from __future__ import annotations

import time
from typing import Any

import pytest

from limiter.live_quota import LiveTenant

from .conftest import Program, wait_until
from .machine import MS, POINTS, WARM_S, WINDOW_S, Host, ended, held

Case = tuple[int, tuple[str, ...], dict[str, str]]


def shares_of(machine: Any, cases: list[Case], window: float = WINDOW_S) -> list[tuple[float, float]]:
    """(share that one process gets, limit) of each case; the machines run side by side."""
    each = [machine(GPULIMIT_COMPUTE=str(limit), **environ) for limit, _, environ in cases]
    seconds = f"seconds={WARM_S + window + 1}"
    running = [it.load(seconds, *options) for it, (_, options, _) in zip(each, cases, strict=True)]
    time.sleep(WARM_S)
    before = [it.sample() for it in each]
    time.sleep(window)
    after = [it.sample() for it in each]
    for process in running:
        ended(process)
    shares = [100 * (b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(before, after, strict=True)]
    return list(zip(shares, (float(limit) for limit, _, _ in cases), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [10, 30, 50, 75])
def test_kernels_of_any_length_are_held_to_the_limit(machine: Any, limit: int) -> None:
    """From 20 us to 12 ms."""
    kernels = (20_000, 200_000, 2 * MS, 12 * MS)
    held(lambda: shares_of(machine, [(limit, (f"kernel={ns}",), {}) for ns in kernels]))


@pytest.mark.slow
def test_very_long_kernels_pay_for_themselves_afterwards(machine: Any) -> None:
    """A kernel of 300 ms cannot be cut; over six seconds one more or less is five points."""
    held(lambda: shares_of(machine, [(30, (f"kernel={300 * MS}",), {})], window=6.0), points=6)


@pytest.mark.slow
def test_graphs_are_charged_by_what_they_hold(machine: Any) -> None:
    held(lambda: shares_of(machine, [(30, ("kernel=50000", f"graph={n}"), {}) for n in (1, 10, 100)]))


OVERLAP = {"GPULIMIT_SIM_SET": "concurrency=4"}
STREAMS: list[Case] = [
    (30, ("streams=4", "kernel=500000"), OVERLAP),
    (30, ("threads=3", "kernel=500000"), {}),
    (30, ("threads=3", "kernel=500000"), OVERLAP),
]
OWN_STREAMS: list[Case] = [
    (30, ("threads=3", "own=1", "kernel=500000"), {}),
    (30, ("threads=3", "own=1", "kernel=500000"), OVERLAP),
]
CONTEXTS: list[Case] = [
    (30, ("threads=2", "contexts=2", "kernel=500000"), {}),
    (30, ("threads=4", "streams=3", "contexts=2", "kernel=100000"), OVERLAP),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases", [STREAMS, OWN_STREAMS, CONTEXTS], ids=["streams", "per-thread streams", "contexts"]
)
def test_streams_threads_and_contexts_share_one_limit(machine: Any, cases: list[Case]) -> None:
    """What overlaps on the card counts once."""
    held(lambda: shares_of(machine, cases))


TWO = {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_SIM_GPUS": "2"}


@pytest.mark.slow
def test_each_gpu_has_its_own_limit(machine: Any) -> None:
    def measure() -> list[tuple[float, float]]:
        it = machine(**TWO, GPULIMIT_COMPUTE="0=20,1=60")
        process = it.load(f"seconds={WARM_S + WINDOW_S + 1}", "threads=2", "devices=2", "kernel=500000")
        time.sleep(WARM_S)
        first, second = it.shares()
        ended(process)
        return [(first, 20), (second, 60)]

    held(measure)


@pytest.mark.slow
def test_load_on_one_gpu_leaves_the_other_s_time_alone(machine: Any) -> None:
    def measure() -> list[tuple[float, float]]:
        it = machine(**TWO, GPULIMIT_COMPUTE="0=20,1=60")
        process = it.load(f"seconds={WARM_S + WINDOW_S + 1}", "kernel=500000", CUDA_VISIBLE_DEVICES="1")
        time.sleep(WARM_S)
        first, second = it.shares()
        ended(process)
        return [(first, 0), (second, 60)]

    held(measure)


def test_bursts_below_the_limit_are_never_held_back(machine: Any) -> None:
    """20 ms of each 100 ms under 30 percent: once the tenant has some time in hand, not one launch waits."""
    for attempt in range(2):
        it = machine(GPULIMIT_COMPUTE="30")
        with Host() as host:
            process = it.load("seconds=2.5", "kernel=1000000", "burst=20000", "period=100000")
            time.sleep(WARM_S)
            before = it.books().devices[0].throttled_count
            saw = ended(process)
        waited = it.books().devices[0].throttled_count - before
        if waited == 0 and saw["late_bursts"] <= 3:  # those at the very beginning
            break
        # A stalled host makes two bursts of one.
        assert host.stalled and not attempt, (waited, saw)
    assert saw["launches"] > 300


def test_without_a_limit_nothing_waits(machine: Any) -> None:
    held(lambda: shares_of(machine, [(100, ("kernel=500000",), {})], window=1.5))


def test_signal_handlers_run_while_a_launch_waits(machine: Any) -> None:
    """Every 5 ms, without SA_RESTART: no launch fails, errno stays, handlers are not put off."""
    it = machine(GPULIMIT_COMPUTE="10")
    saw = ended(it.load("seconds=2", "kernel=5000000", "timer=5000"))
    assert saw["signals"] > 250
    assert saw["blocked_ms"] > 20
    assert it.books().devices[0].throttled_count > 10


def test_a_raised_limit_is_in_force_within_a_tenth_of_a_second(machine: Any) -> None:
    it = machine(GPULIMIT_COMPUTE="10")
    process = it.load("seconds=3.5", "kernel=1000000")
    time.sleep(WARM_S)
    with LiveTenant(it.tenant) as live:
        assert it.shares(0.6)[0] < 25
        live.set(0, compute_percent=80)
        time.sleep(0.1)
        assert it.shares(0.6)[0] > 65
        live.set(0, compute_percent=10)
        time.sleep(0.1)
        assert it.shares(1.0)[0] < 15
    ended(process)


def test_launches_that_become_much_shorter_get_no_free_time(machine: Any) -> None:
    """What was charged too much for them at first is no credit for the time when a limit comes."""
    it = machine(GPULIMIT_COMPUTE="100")
    bursts = ("burst=10000", "period=50000")
    process = it.load("seconds=5", "firsts=8", "first=150000000", "kernel=500000", *bursts)
    time.sleep(1.8)
    with LiveTenant(it.tenant) as live:
        live.set(0, compute_percent=5)
        time.sleep(0.5)
        assert it.shares(1.5)[0] == pytest.approx(5, abs=POINTS)
    process.wait()


def test_launches_that_become_much_shorter_are_not_held_back_for_what_they_were(machine: Any) -> None:
    it = machine(GPULIMIT_COMPUTE="50")
    process = it.load("seconds=6", "firsts=8", "first=150000000", "kernel=500000")
    time.sleep(3.2)  # 1.2 s of work under 50 percent
    assert it.shares(1.5)[0] == pytest.approx(50, abs=2 * POINTS)
    process.wait()


def test_a_raised_limit_wakes_who_waits(machine: Any) -> None:
    """Under 1 percent a kernel of 100 ms costs ten seconds of waiting; without a limit, none."""
    it = machine(GPULIMIT_COMPUTE="1")
    process = it.load("seconds=30", "kernel=100000000", "launches=6")
    wait_until(lambda: it.books().processes[0].accounts[0].launches["kernel"] >= 2)
    time.sleep(0.5)
    before = it.sample()
    with LiveTenant(it.tenant) as live:
        changed = time.monotonic()
        live.set(0, compute_percent=100)
    wait_until(lambda: it.sample()[1] > before[1], 2)
    assert time.monotonic() - changed < 0.25
    assert ended(process)["launches"] == 6
    assert time.monotonic() - changed < 3


def test_suspending_stops_launches_and_resuming_lets_them_go(machine: Any) -> None:
    it = machine(GPULIMIT_COMPUTE="100")
    process = it.load("seconds=3", "kernel=100000")
    time.sleep(WARM_S)
    with LiveTenant(it.tenant) as live:
        live.suspend(0, suspended=True)
        time.sleep(0.3)  # what was submitted runs to its end: 1024 kernels at most
        assert it.shares(0.5)[0] == 0
        live.suspend(0, suspended=False)
        time.sleep(0.1)
        assert it.shares(0.5)[0] > 90
    ended(process)


def test_a_suspended_process_can_be_ended(machine: Any) -> None:
    it = machine(GPULIMIT_COMPUTE="50")
    process = it.load("seconds=20", "kernel=100000")
    time.sleep(WARM_S)
    with LiveTenant(it.tenant) as live:
        live.suspend(0, suspended=True)
    time.sleep(0.2)
    process.terminate()
    assert process.wait(timeout=2) == -15


def test_unknown_long_kernels_do_not_pile_up_debt(machine: Any) -> None:
    """A program may not run ahead on launches of which nothing is known yet and then stand still for ages."""
    it = machine(GPULIMIT_COMPUTE="30")
    process = it.load("seconds=20", f"kernel={100 * MS}", "launches=12")
    most = 0
    while process.poll() is None:
        usage = it.books()
        if usage.devices:
            most = max(most, usage.devices[0].spent_ns - usage.devices[0].granted_ns)
        time.sleep(0.005)
    saw = ended(process)
    assert most <= 350 * MS  # two unknown ones and the one that goes on credit
    assert saw["blocked_ms"] < 1000
    assert it.books().devices[0].spent_ns == pytest.approx(1200 * MS, rel=0.15)


def test_a_context_made_again_is_held_to_the_limit_like_the_first(
    program: Program, run_process: Any, limited_env: dict[str, str]
) -> None:
    """What the library recorded in the first context has gone with it and is of no use in the next."""
    env = limited_env | {"GPULIMIT_COMPUTE": "30"}
    ended = run_process([program("compute/again")], env=env, expect=0)
    # A window of 1.5 s of kernels of 2 ms, with 30 ms saved up at the start of the first.
    assert all(26 <= float(share) <= 35 for share in ended.stdout.split()), ended.stdout
    assert len(ended.stdout.split()) == 3


@pytest.mark.parametrize("code", ["module", "library"])
def test_code_whose_function_got_the_handle_of_unloaded_code_is_not_taken_for_it(
    program: Program, run_process: Any, limited_env: dict[str, str], code: str
) -> None:
    """It may not run far ahead at the unloaded one's price, which was a two-hundredth."""
    env = limited_env | {"GPULIMIT_COMPUTE": "30"}
    ended = run_process([program("compute/reload"), code], env=env, expect=0)
    # 30 ms of the window's own, as much saved up, and what is under way.
    assert int(ended.stdout) <= 120, ended.stdout


def test_cheap_launches_are_charged_a_few_at_a_time_and_where_they_ran(
    machine: Any, program: Program, start_process: Any
) -> None:
    """The first thousand one by one; then less than 16 are missing, and no more go to the context before."""
    it = machine(**TWO)
    process = start_process([program("compute/light")], env=it.environ, stdin=-1)

    def launch(count: int, device: int) -> list[int]:
        process.stdin.write(f"{count} {device}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n", process.stderr.read()
        return [account.launches["kernel"] for account in it.books().processes[0].accounts]

    assert launch(500, 0) == [500, 0]
    many, _ = launch(5000, 0)
    assert 5500 - 16 < many <= 5500
    assert it.books().devices[0].spent_ns == pytest.approx(5500 * 5000, rel=0.3)
    first, second = launch(500, 1)
    assert first <= 5500 + 16
    assert 500 - 16 <= second <= 500
    first, second = launch(2000, 0)
    assert 7500 - 32 < first <= 7500 + 16
    assert second <= 500


def test_more_streams_than_can_be_measured_are_held_to_the_limit_too(
    machine: Any, program: Program, start_process: Any
) -> None:
    """No launch's cost tells of another's: those of the streams for which there is no room are waited for."""
    it = machine(GPULIMIT_COMPUTE="30")
    process = start_process([program("compute/many_streams"), "3000", "8", "1500000"], env=it.environ)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    time.sleep(2.5)
    assert it.shares(3)[0] < 30 + 2 * POINTS
    assert process.wait(timeout=20) == 0
