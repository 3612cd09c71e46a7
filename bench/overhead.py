# SPDX-License-Identifier: Apache-2.0
"""Measures the library's cost for a program without limits: the same work with and without it, by turns.

    python bench/overhead.py --library build/shim/libgpulimit.so --out overhead.json

Host-bound loops vary by 15 % from process to process and from second to second. So `launch` and `malloc` (with free)
are measured within one process, in alternating batches through the library and directly into the driver
(call_overhead.c). `without` is the same program without the library and shows the noise. The other rows are steps per
second of the workloads in workloads.py. Processes of both sides are alive at the same time and take short turns on the
otherwise idle card. "With the library" means GPULIMIT_MEMORY and GPULIMIT_COMPUTE=100: metered, not limited.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from child import Child, prepare

HERE = Path(__file__).resolve().parent
LOOPS = ("launch", "malloc")
STEPS = ("memory_bound", "training", "gemm_512")
SIDES = ("without", "quota")

Loops = dict[str, dict[str, list[list[float]]]]  # figure → side → rounds of (through, direct, difference) in ns
Rates = dict[str, dict[str, list[list[float]]]]  # figure → side → process → steps a second of each turn


def build_loop(folder: Path) -> Path:
    """Compile call_overhead.c against the driver."""
    target = folder / "loop"
    subprocess.run(["cc", "-O2", "-o", target, HERE / "call_overhead.c", "-l:libcuda.so.1"], check=True)
    return target


def measure_loops(loop: Path, envs: dict[str, dict[str, str]], rounds: int) -> Loops:
    """Run the C loops, each in `rounds` processes of each side."""
    found: Loops = {what: {side: [] for side in envs} for what in LOOPS}
    for _ in range(rounds):
        for what in LOOPS:
            for side, env in envs.items():
                command = [loop, what]
                done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=True, timeout=120)
                found[what][side].append([float(word) for word in done.stdout.split()])
    return found


def measure_steps(names: list[str], envs: dict[str, dict[str, str]], processes: int, turns: int, seconds: float) -> Rates:
    """Run the workloads by turns in `processes` processes of each side."""
    children = {side: [Child(env) for _ in range(processes)] for side, env in envs.items()}
    everyone = [child for group in children.values() for child in group]
    prepare(everyone, names)
    found: Rates = {name: {side: [[] for _ in group] for side, group in children.items()} for name in names}
    for name in names:
        for turn in range(turns):
            order = list(envs) if turn % 2 else list(reversed(envs))
            for copy in range(processes):
                for side in order:
                    answer = children[side][copy].ask({"run": name, "seconds": seconds, "at": 0.0})
                    found[name][side][copy].append(answer["rate"])
    for child in everyone:
        child.stop()
    return found


def loop_rows(loops: Loops) -> list[str]:
    """Return table rows: medians over the processes, in ns per call."""
    rows = [f"{'ns a call':14} {'driver':>10} {'through':>10} {'difference':>11}  {'least..most':>17}  {'without':>9}"]
    for what, sides in loops.items():
        through, direct, apart = (statistics.median(r[i] for r in sides["quota"]) for i in range(3))
        noise = statistics.median(r[2] for r in sides["without"])
        spread = f"{min(r[2] for r in sides['quota']):+.0f}..{max(r[2] for r in sides['quota']):+.0f}"
        rows.append(f"{what:14} {direct:10.1f} {through:10.1f} {apart:+11.1f}  {spread:>17}  {noise:+9.1f}")
    return rows


def slowdown(sides: dict[str, list[list[float]]]) -> tuple[float, float, float]:
    """Return percentages: the slowdown by processes and by neighbouring turns, and the spread without the library."""
    without, quota = (statistics.median(statistics.median(rates) for rates in sides[side]) for side in SIDES)
    pairs = [q / w for a, b in zip(sides["quota"], sides["without"], strict=True) for q, w in zip(a, b, strict=True)]
    every = [rate for rates in sides["without"] for rate in rates]
    quarters = statistics.quantiles(every, n=4)
    return 100 * (1 - quota / without), 100 * (1 - statistics.median(pairs)), 100 * (quarters[2] / quarters[0] - 1)


def step_rows(rates: Rates) -> list[str]:
    """Return table rows: medians of steps per second, and the loss with the library."""
    rows = [f"{'steps a second':14} {'without':>10} {'quota':>10} {'slower by':>11}  {'of neighbours':>17}  {'quartiles':>9}"]
    for name, sides in rates.items():
        medians = [statistics.median(rate for rates in sides[side] for rate in rates) for side in SIDES]
        slower, pairs, spread = slowdown(sides)
        rows.append(f"{name:14} {medians[0]:10.1f} {medians[1]:10.1f} {slower:+9.2f} %  {pairs:+15.2f} %  {spread:8.1f}%")
    return rows


def main() -> None:
    """Run both sides by turns, and print the tables last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5, help="processes for each C loop")
    parser.add_argument("--processes", type=int, default=3, help="processes of each side for the workloads")
    parser.add_argument("--turns", type=int, default=15, help="turns of each process in each workload")
    parser.add_argument("--seconds", type=float, default=0.4, help="seconds of a turn")
    parser.add_argument("--steps", default=",".join(STEPS), help="workloads, comma-separated; empty: only the C loops")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    quota = {"LD_PRELOAD": str(options.library.resolve()), "GPULIMIT_TENANT": f"overhead-{os.getpid()}"}
    envs = {"without": {}, "quota": quota | {"GPULIMIT_MEMORY": "64GiB", "GPULIMIT_COMPUTE": "100"}}
    with tempfile.TemporaryDirectory() as folder:
        loops = measure_loops(build_loop(Path(folder)), envs, options.rounds)
    print("\n".join(loop_rows(loops)), flush=True)
    names = [n for n in options.steps.split(",") if n]
    rates = measure_steps(names, envs, options.processes, options.turns, options.seconds) if names else {}
    if options.out:
        options.out.write_text(json.dumps({"loops": loops, "steps": rates}, indent=1))
    print("\n".join(step_rows(rates)))


if __name__ == "__main__":
    main()
