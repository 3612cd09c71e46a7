# SPDX-License-Identifier: Apache-2.0
"""Measures the accuracy of compute limits: the achieved share of GPU time against the limit, per workload.

    python bench/share.py --library build/shim/libgpulimit.so --limits 10,25,50,75,90 --seconds 10 --out results.json

GPU time is measured independently of the library: completed steps per second, times the GPU time of one step by the
profiler (CUPTI, through torch). A load that saturates the card and is not limited by power is also measured by its
throughput relative to the free run next to it. This needs no profiler and is preferred if it is available. A
power-limited load runs at higher clocks when it runs less, so its step is profiled again under each limit.

Another project's library can be measured in the same call: --peer NAME=PATH --peer-env
'CUDA_DEVICE_SM_LIMIT={percent}'.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


def window(load: Any, seconds: float) -> tuple[float, list[float]]:
    """Run for `seconds`. Return the completed steps per second, overall and in each whole second of the window."""
    marks: deque[tuple[Any, int]] = deque()
    times: list[tuple[float, int]] = []
    load.sync()
    begin = time.perf_counter()
    steps = 0
    while time.perf_counter() - begin < seconds:
        for _ in range(load.check_every):
            load.step()
        steps += load.check_every
        marks.append((load.mark(), steps))
        while len(marks) > load.ahead:
            mark, done = marks.popleft()
            mark.synchronize()
            times.append((time.perf_counter() - begin, done))
    load.sync()
    end = time.perf_counter() - begin
    times.append((end, steps))
    return steps / end, by_second(times, int(seconds))


def by_second(times: list[tuple[float, int]], whole: int) -> list[float]:
    """Return the completed steps in each second, interpolated between the marks."""

    def at(moment: float) -> float:
        before = (0.0, 0)
        for t, n in times:
            if t >= moment:
                return before[1] + (n - before[1]) * (moment - before[0]) / (t - before[0])
            before = (t, n)
        return float(before[1])

    return [at(i + 1.0) - at(float(i)) for i in range(whole)]


def gpu_seconds_per_step(load: Any, steps: int) -> float:
    """Return the GPU time of one step by the profiler. Work that overlaps counts once."""
    from torch.profiler import ProfilerActivity, profile

    load.sync()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            load.step()
        load.sync()
    spans = sorted((e.time_range.start, e.time_range.end) for e in profiler.events() if e.device_type.name == "CUDA")
    busy = until = 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy / 1e6 / steps


class Limiter:
    """Sets the limit of this process. Does nothing without the library.

    A child process does it: if this process closed its own usage segment, its record locks would be dropped.
    """

    def __init__(self) -> None:
        self.tenant = os.environ.get("GPULIMIT_TENANT")

    def _ask(self, expression: str) -> str:
        program = f"from limiter.live_quota import LiveTenant\nwith LiveTenant({self.tenant!r}) as live: print({expression})"
        env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=env, cwd=HERE.parent, capture_output=True, text=True, check=True, timeout=60).stdout

    def set(self, percent: int) -> None:
        if self.tenant:
            self._ask(f"live.set(0, compute_percent={percent})")

    def spent_ns(self) -> int:
        return int(self._ask("live.spent_ns(0)")) if self.tenant else 0


def measure(name: str, limits: list[int], seconds: float, free_seconds: float, fixed: bool) -> dict[str, Any]:
    """Measure all windows of one workload. `fixed`: the limit cannot change (peers) and is limits[0]."""
    import workloads

    load = workloads.ALL[name]()
    limiter = Limiter()
    for _ in range(3):
        load.step()
    load.sync()
    rate, _ = window(load, 0.5)
    steps = max(1, min(2000, int(rate * 0.2)))
    result: dict[str, Any] = {"workload": name, "power_limited": load.power_limited, "windows": []}
    result["step_s"] = gpu_seconds_per_step(load, steps)
    before, _ = window(load, free_seconds)
    if load.busy_s:
        load.busy_s()
        before, _ = window(load, free_seconds)
        result["step_s"] = load.busy_s() / (before * free_seconds)
    for percent in limits:
        if not fixed:
            limiter.set(percent)
        # No pause between settling and the window: a tenant saves up to 0.1 s of unused time.
        spent, asked = limiter.spent_ns(), time.perf_counter()
        settle(load)
        if load.busy_s:
            load.busy_s()
        begin = time.perf_counter()
        got, seconds_list = window(load, seconds)
        wall, since = time.perf_counter() - begin, time.perf_counter() - asked
        spent = limiter.spent_ns() - spent
        step_s = step_seconds(load, result["step_s"], steps * percent // 50, got * wall)
        result["windows"].append(
            {"percent": percent, "rate": got, "by_second": seconds_list, "step_s": step_s, "charged": spent / 1e9 / since}
        )
    if not fixed:
        limiter.set(100)
        settle(load)
        after, _ = window(load, free_seconds)
        before = statistics.mean((before, after))
    result["free_rate"] = before
    return result


def step_seconds(load: Any, free_step_s: float, steps: int, done: float) -> float:
    """Return the GPU time of a step under the current limit. `done`: number of steps in the last window."""
    if load.busy_s:
        return load.busy_s() / done
    return gpu_seconds_per_step(load, max(1, steps)) if load.power_limited else free_step_s


def settle(load: Any) -> None:
    """Run until the debt of work under the previous limit is paid."""
    with contextlib.suppress(Exception):
        window(load, 0.3)


def worker(options: argparse.Namespace) -> None:
    """Child process: measure and print one JSON line per workload."""
    for name in options.worker.split(","):
        try:
            found = measure(name, options.limits, options.seconds, options.free_seconds, options.fixed)
        except Exception as error:  # a workload that cannot run here must not end the other ones
            found = {"workload": name, "error": f"{type(error).__name__}: {error}"[:300]}
        print("RESULT " + json.dumps(found), flush=True)


def without_first(found: dict[str, Any], seconds: int) -> dict[str, Any]:
    """Return the result without the first whole seconds of each window, which may spend saved time."""
    windows = [w | {"by_second": w["by_second"][seconds:], "rate": statistics.mean(w["by_second"][seconds:])} for w in found["windows"]]
    return found | {"windows": windows}


def evaluate(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return table rows: limit, achieved share, error, worst second, in percentage points of a whole GPU."""
    rows = []
    free_share = found["free_rate"] * found["step_s"]
    saturates = free_share > 0.93
    for w in found["windows"]:
        # GPU time of a step: by throughput where the free run fills the card, else by the profiler.
        step = 1 / found["free_rate"] if saturates and not found["power_limited"] else w["step_s"]
        share = 100 * w["rate"] * step
        want = min(w["percent"], 100 * free_share)
        seconds = [100 * n * step for n in w["by_second"]]
        rows.append(
            {
                "workload": found["workload"], "percent": w["percent"], "free_share": 100 * free_share,
                "share": share, "error": share - w["percent"] if want == w["percent"] else None,
                "of_free": w["rate"] / found["free_rate"], "charged": 100 * w["charged"],
                "worst_second": max((abs(s - w["percent"]) for s in seconds), default=0.0) if want == w["percent"] else None,
                "by": "throughput" if saturates and not found["power_limited"] else "profiler",
            }
        )  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table, with mean and worst error last."""
    lines = [f"{'workload':14} {'limit':>5} {'free':>6} {'share':>6} {'error':>6} {'worst s':>7} {'charged':>7} {'of free':>7}  by"]
    for r in rows:
        error = f"{r['error']:+6.2f}" if r["error"] is not None else "     -"
        worst = f"{r['worst_second']:7.2f}" if r["worst_second"] is not None else "      -"
        lines.append(
            f"{r['workload']:14} {r['percent']:5d} {r['free_share']:6.1f} {r['share']:6.2f} {error} {worst} "
            f"{r['charged']:7.2f} {r['of_free']:7.3f}  {r['by']}"
        )
    errors = [abs(r["error"]) for r in rows if r["error"] is not None]
    if errors:
        lines.append(f"error: mean {statistics.mean(errors):.2f}, worst {max(errors):.2f} points over {len(errors)} windows")
    return "\n".join(lines)


def run(names: str, env: dict[str, str], options: argparse.Namespace, limits: list[int], fixed: bool) -> list[dict[str, Any]]:
    """Run a child and return its results. Its other output goes to stderr."""
    command = [sys.executable, str(HERE / "share.py"), "--worker", names, "--seconds", str(options.seconds)]
    command += ["--free-seconds", str(options.free_seconds), "--limits", ",".join(map(str, limits))] + ["--fixed"] * fixed
    found = []
    with subprocess.Popen(command, env=os.environ | env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("RESULT "):
                found.append(json.loads(line[7:]))
                if "error" not in found[-1]:  # shown at once, so that an interrupted run still has results
                    print(table(evaluate(found[-1])), file=sys.stderr, flush=True)
    if child.returncode:
        print(f"worker {names} ended with {child.returncode}", file=sys.stderr)
    return found


def main() -> None:
    """Run the workloads and print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, help="libgpulimit.so")
    parser.add_argument("--workloads", default="all", help="names, comma-separated")
    parser.add_argument("--limits", default=[25, 50], type=lambda text: [int(p) for p in text.split(",")])
    parser.add_argument("--seconds", default=10.0, type=float, help="seconds of a window")
    parser.add_argument("--free-seconds", default=2.0, type=float)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peer", help="NAME=PATH of another library to measure beside ours")
    parser.add_argument("--peer-env", default="", help="environment of that library, NAME=VALUE separated by spaces; {percent} is the limit")
    parser.add_argument("--read", type=Path, help="measure nothing, and print the table of a file that --out wrote")
    parser.add_argument("--skip-seconds", type=int, default=0, help="whole seconds to leave out at the start of each window, with --read")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--fixed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    if options.read:
        found = [without_first(f, options.skip_seconds) for f in json.loads(options.read.read_text()) if "error" not in f]
        print(table([row for f in found for row in evaluate(f)]))
        return
    import workloads

    names = list(workloads.ALL) if options.workloads == "all" else options.workloads.split(",")
    groups = [",".join(n for n in names if n != "jax")] + ["jax"] * ("jax" in names)
    ours = {"LD_PRELOAD": str(options.library.resolve()), "GPULIMIT_TENANT": f"bench-{os.getpid()}", "GPULIMIT_COMPUTE": "100"}
    found = [f | {"library": "gpulimit"} for g in groups if g for f in run(g, ours, options, options.limits, fixed=False)]
    if options.peer:
        label, path = options.peer.split("=", 1)
        for percent in options.limits:
            settings = dict(pair.split("=", 1) for pair in options.peer_env.format(percent=percent).split())
            for g in filter(None, groups):
                more = run(g, {"LD_PRELOAD": path} | settings, options, [percent], fixed=True)
                found += [f | {"library": label} for f in more]
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))
    for library in dict.fromkeys(f["library"] for f in found):
        print(f"\n{library}")
        print(table([row for f in found if f["library"] == library and "error" not in f for row in evaluate(f)]))
    for f in found:
        if "error" in f:
            print(f"{f['workload']}: {f['error']}")


if __name__ == "__main__":
    main()
