# SPDX-License-Identifier: Apache-2.0
"""What the library costs a program that is not limited: the same work with and without it, by turns.

    python bench/overhead.py --library build/shim/libgpulimit.so --rounds 6 --out overhead.json

Host-bound loops vary by 15 % from process to process, so both sides run by turns in fresh processes and the medians
are compared. `launch` and `malloc` are C loops (loop.c): ns a call on the host. The others are steps a second of the
workloads in workloads.py. `quota` is with GPULIMIT_MEMORY and GPULIMIT_COMPUTE=100, that is, metered but not limited.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOOPS = ("launch", "sync", "malloc")
STEPS = ("memory_bound", "training", "gemm_512")


def build_loop(folder: Path) -> Path:
    """Compile loop.c against the driver."""
    target = folder / "loop"
    subprocess.run(["cc", "-O2", "-o", target, HERE / "loop.c", "-l:libcuda.so.1"], check=True)
    return target


def steps_a_second(names: list[str], seconds: float, env: dict[str, str]) -> dict[str, float]:
    """Run the workloads in one fresh process."""
    command = [sys.executable, __file__, "--worker", ",".join(names), "--seconds", str(seconds)]
    text = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300).stdout
    return dict(json.loads(text.splitlines()[-1]))


def worker(names: list[str], seconds: float) -> None:
    """Child process: print one JSON object of steps a second."""
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    import share
    import workloads

    rates = {}
    for name in names:
        load = workloads.ALL[name]()
        share.window(load, 0.5)
        rates[name], _ = share.window(load, seconds)
    print(json.dumps(rates))


def once(loop: Path, names: list[str], seconds: float, env: dict[str, str]) -> dict[str, float]:
    """All figures of one side, once."""
    found = {}
    for what in LOOPS:
        done = subprocess.run([loop, what], env=env, capture_output=True, text=True, check=True, timeout=120)
        found[what] = float(done.stdout)
    if names:
        found |= steps_a_second(names, seconds, env)
    return found


def table(rounds: list[dict[str, dict[str, float]]], sides: list[str]) -> str:
    """Medians side by side, and the median of the differences of neighbours."""
    lines = [f"{'figure':14} {'without':>12} " + " ".join(f"{s:>12} {'difference':>12}" for s in sides[1:]) + "  spread"]
    for figure in rounds[0][sides[0]]:
        base = [r[sides[0]][figure] for r in rounds]
        cells = [f"{figure:14} {statistics.median(base):12.1f}"]
        for side in sides[1:]:
            pairs = [(r[side][figure], r[sides[0]][figure]) for r in rounds]
            if figure in LOOPS:
                difference = f"{statistics.median(a - b for a, b in pairs):+9.1f} ns"
            else:
                difference = f"{100 * (1 - statistics.median(a for a, _ in pairs) / statistics.median(base)):+10.2f} %"
            cells.append(f"{statistics.median(a for a, _ in pairs):12.1f} {difference:>12}")
        cells.append(f" {100 * (max(base) / min(base) - 1):.0f}%")
        lines.append(" ".join(cells))
    return "\n".join(lines)


def main() -> None:
    """Run both sides by turns and print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--steps", default=",".join(STEPS), help="workloads, comma-separated; empty: only the C loops")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker.split(","), options.seconds)
        return
    quota = {"LD_PRELOAD": str(options.library.resolve()), "GPULIMIT_TENANT": f"overhead-{os.getpid()}"}
    sides = {"without": {}, "quota": quota | {"GPULIMIT_MEMORY": "64GiB", "GPULIMIT_COMPUTE": "100"}}
    names = [n for n in options.steps.split(",") if n]
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        loop = build_loop(Path(folder))
        for _ in range(options.rounds):
            rounds.append({side: once(loop, names, options.seconds, os.environ | env) for side, env in sides.items()})
    if options.out:
        options.out.write_text(json.dumps(rounds, indent=1))
    print(table(rounds, list(sides)))


if __name__ == "__main__":
    main()
