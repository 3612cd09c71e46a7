# SPDX-License-Identifier: Apache-2.0
"""Scenarios of fair.py: the time until a change takes effect, and the cost of the daemon.

A tenant's completed steps are recorded (step_rate.py). The lag of a change is computed from the steps missing after it.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from child import prepare, together
from step_rate import Times, done_at, lag_ms, rate_between

LOAD = "memory_bound"
KILLS = 4
WORK_WITHIN_S, STEADY_AFTER_S, COST_S = 60.0, 1.0, 4.0
"""Time within which tenants must begin, time left out after that, and time of the measurement of the cost."""


def lending(side: Any) -> dict[str, Any]:
    """Measure lending: one tenant runs all the time, the other 0.3 s of every second."""
    steady, pulsing = side.child(0), side.child(1)
    prepare((steady, pulsing), [LOAD])
    side.set_quota(0)
    side.set_quota(1)
    free = together([steady], [{"run": LOAD, "seconds": 1.0}])[0]["rate"]
    count, on, off = 10, 0.3, 0.3
    watched, pulsed = together(
        [steady, pulsing],
        [{"watch": LOAD, "seconds": count * (on + off)}, {"pulses": LOAD, "on": on, "off": off, "count": count}],
    )
    lent, taken = [], []
    for pulse in pulsed["pulses"][:-1]:
        times = [(pulse["begin"], 0), *pulse["times"]]
        last = pulse["times"][-1][0]
        lent.append(lag_ms(watched["times"], last, 0.1, free))
        middle = rate_between(times, pulse["begin"] + 0.1, pulse["begin"] + on)
        taken.append(lag_ms(times, pulse["begin"], 0.1, middle))
    row = (
        f"idle share lent after {statistics.median(lent):.1f} ms (worst {max(lent):.1f}), "
        f"taken back after {statistics.median(taken):.1f} ms (worst {max(taken):.1f}), of {len(lent)}"
    )
    return {"lent_ms": lent, "taken_ms": taken, "rows": [row]}


def new_quota(side: Any) -> dict[str, Any]:
    """Measure new quotas: weights from 1:1 to 1:3 and back, and a lone tenant's limit from 100 to 30 % and back."""
    first, other = side.child(0), side.child(1)
    prepare((first, other), [LOAD])
    rows, found = [], {}
    for name, children, before, after in (
        ("weights 1:1 to 1:3", (first, other), {}, {"weight": "300"}),
        ("limit 100 to 30 %", (other,), {}, {"compute": "30"}),
    ):
        side.set_quota(0)
        side.set_quota(1, **before)
        for child in children:
            child.tell({"watch": LOAD, "seconds": 6.0, "at": time.monotonic() + 0.2})
        moments = []
        for terms in (after, before, after, before):
            time.sleep(1.2)
            asked = time.monotonic()
            side.set_quota(1, **terms)
            moments.append((asked, time.monotonic()))
        times = [child.answer()["times"] for child in children][-1]
        lags = [settling_ms(times, asked) for asked, _ in moments]
        found[name] = lags
        calls = max(1000 * (answered - asked) for asked, answered in moments)
        rows.append(
            f"{name}: in force {statistics.median(lags):.0f} ms after the call (worst {max(lags):.0f}); call {calls:.0f} ms at most"
        )
    return {"lags_ms": found, "rows": rows}


def settling_ms(times: Times, asked: float) -> float:
    """Return the lag of the change from the old rate to the new one, by the steps of the 0.3 s after the call."""
    old, new = rate_between(times, asked - 0.5, asked), rate_between(times, asked + 0.4, asked + 1.0)
    got = done_at(times, asked + 0.3) - done_at(times, asked)
    return 1000 * (0.3 * new - got) / (new - old)


def killed(side: Any) -> dict[str, Any]:
    """Kill a tenant while two want the GPU, and measure the longest pause of the other one."""
    survivor = side.child(0)
    prepare((survivor,), [LOAD])
    side.set_quota(0)
    gaps, usual = [], []
    for _ in range(4):
        command = [sys.executable, "-m", "limiter", "load", "--seconds", "30"]
        victim = subprocess.Popen(command, env=os.environ | side.env(7), stdout=subprocess.DEVNULL)
        time.sleep(1.5)
        at = time.monotonic() + 0.2
        survivor.tell({"watch": LOAD, "seconds": 1.2, "at": at})
        time.sleep(0.7)
        victim.send_signal(signal.SIGKILL)
        moment = time.monotonic()
        victim.wait()
        times = survivor.answer()["times"]
        pairs = [(a[0], b[0] - a[0]) for a, b in itertools.pairwise(times)]
        gaps.append(1000 * max(gap for begin, gap in pairs if moment - 0.05 < begin < moment + 0.3))
        usual.append(1000 * max(gap for begin, gap in pairs if begin < moment - 0.05))
    row = f"longest pause of the other round the kill {max(gaps):.1f} ms (of {len(gaps)}; otherwise {max(usual):.1f} ms)"
    return {"gaps_ms": gaps, "usual_ms": usual, "rows": [row]}


def daemon_away(side: Any) -> dict[str, Any]:
    """Kill and restart the daemon while two tenants run, weights 1:3, one of them limited to 60 %."""
    first, other = side.child(0), side.child(1)
    prepare((first, other), [LOAD])
    free = together([first], [{"run": LOAD, "seconds": 1.0}])[0]["rate"]
    side.set_quota(0, weight="100", request="20")
    side.set_quota(1, weight="300", compute="60", request="40")
    at = time.monotonic() + 0.2
    for child in (first, other):
        child.tell({"watch": LOAD, "seconds": 9.0, "at": at})
    time.sleep(2.2)
    assert side.daemon is not None
    side.daemon.kill()
    side.daemon.wait()
    gone = time.monotonic()
    time.sleep(3.0)
    side.start_daemon()
    back = time.monotonic()
    watched = [child.answer()["times"] for child in (first, other)]
    with_daemon, without, again = (
        [rate_between(times, begin, end) / free for times in watched]
        for begin, end in ((at + 0.5, gone), (gone + 0.5, gone + 2.9), (back + 1.0, at + 9.0))
    )
    pause = max(
        b[0] - a[0] for times in watched for a, b in itertools.pairwise(times) if gone - 0.1 < a[0] < gone + 1
    )
    shares = [f"{a:.3f} {b:.3f}" for a, b in (with_daemon, without, again)]
    row = (
        f"shares with it {shares[0]}, while it is away {shares[1]}, from 1 s after it is back {shares[2]}; "
        f"longest pause at its death {1000 * pause:.1f} ms"
    )
    return {"before": with_daemon, "away": without, "again": again, "pause_s": pause, "rows": [row]}


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Return the CPU time in seconds of a process, and of its live children."""
    return cpu_of(pid), sum(cpu_of(child) for child in children_of(pid))


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """Return the child pids of a process by /proc/PID/stat: not every kernel lists children."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue  # ended meanwhile
        if parent == pid:
            found.append(int(path.parent.name))
    return found


def cost(side: Any) -> dict[str, Any]:
    """Measure the CPU time of the daemon and its NVML child while tenants keep the queue full."""
    assert side.daemon is not None
    found, rows = {}, []
    for count in (2, 16):
        command = [sys.executable, "-m", "limiter", "load", "--seconds", "300"]
        loads = [subprocess.Popen(command, env=os.environ | side.env(20 + n), stdout=subprocess.DEVNULL) for n in range(count)]
        try:
            wait_for_work([side.name(20 + n) for n in range(count)])
            time.sleep(STEADY_AFTER_S)
            used, began = cpu_seconds(side.daemon.pid), time.monotonic()
            time.sleep(COST_S)
            wall_s = time.monotonic() - began
            now = cpu_seconds(side.daemon.pid)
            assert all(load.poll() is None for load in loads), "a load ended while the daemon's cost was measured"
        finally:
            for load in loads:
                load.terminate()
            for load in loads:
                load.wait(timeout=30)
        own, probe = (100 * (after - before) / wall_s for before, after in zip(used, now, strict=True))
        found[count] = {"daemon_percent": own, "probe_percent": probe, "seconds": wall_s}
        rows.append(
            f"the daemon takes {own:.1f} % of a core with {count} tenants that keep the queue full "
            f"(and {probe:.1f} % its child that asks NVML)"
        )
    return {"cost": found, "rows": rows}


def wait_for_work(tenants: Sequence[str]) -> None:
    """Wait until all of these tenants have had GPU time. Raises RuntimeError after WORK_WITHIN_S."""
    from limiter import daemon_client

    wanted = set(tenants)
    deadline = time.monotonic() + WORK_WITHIN_S
    while wanted:
        for tenant in daemon_client.ask("GET", "/v1/state")["tenants"]:
            if any(gpu.get("spent_ns", 0) > 0 and gpu.get("present") for gpu in tenant["gpus"]):
                wanted.discard(tenant["tenant"])
        if wanted and time.monotonic() > deadline:
            raise RuntimeError(f"no GPU time within {WORK_WITHIN_S:g} s: {', '.join(sorted(wanted))}")
        time.sleep(0.1)


SCENARIOS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "lending": lending,
    "new-quota": new_quota,
    "killed": killed,
    "daemon-away": daemon_away,
    "cost": cost,
}
