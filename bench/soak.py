# SPDX-License-Identifier: Apache-2.0
"""Checks for drift over minutes under a limit: the error of the share, memory, handles, threads.

    python bench/soak.py --library build/shim/libgpulimit.so --minutes 10 --out soak.json

One process under GPULIMIT_COMPUTE alternates windows of a kernel that saturates the card and of a training step. The
share of the saturating load is its throughput over that of a free run before and after. Each window also records the
process's resident memory, open files and threads, and the device memory charged to it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
LOAD, OTHER = "memory_bound", "training"


def resources() -> dict[str, int]:
    """Return the resources that this process holds now."""
    import torch

    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    free, total = torch.cuda.mem_get_info()
    return {
        "resident_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "device_bytes": total - free,
    }


def worker(options: argparse.Namespace) -> None:
    """Child process: print one JSON line per window."""
    import share
    import workloads

    loads = {name: workloads.ALL[name]() for name in (LOAD, OTHER)}
    limiter = share.Limiter()

    def free_rate() -> float:
        limiter.set(100)
        share.settle(loads[LOAD])
        return share.window(loads[LOAD], 3.0)[0]

    print(json.dumps({"free": free_rate()}), flush=True)
    limiter.set(options.percent)
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        for name, load in loads.items():
            share.settle(load)
            rate, seconds = share.window(load, options.seconds)
            print(json.dumps({"load": name, "rate": rate, "by_second": seconds} | resources()), flush=True)
    print(json.dumps({"free": free_rate()}), flush=True)


def table(lines: list[dict[str, Any]], percent: int) -> str:
    """Return a table of the first and the last fifth of the run."""
    free = statistics.mean(line["free"] for line in lines if "free" in line)
    windows = [line for line in lines if line.get("load") == LOAD]
    fifth = max(1, len(windows) // 5)
    errors = [100 * w["rate"] / free - percent for w in windows]
    rows = [f"{len(windows)} windows of {LOAD} under {percent} %; free {free:.1f} steps a second"]
    rows.append(
        f"error in points: first fifth {statistics.mean(errors[:fifth]):+.3f}, last {statistics.mean(errors[-fifth:]):+.3f}, "
        f"least {min(errors):+.3f}, most {max(errors):+.3f}"
    )
    for name in ("resident_kib", "threads", "files", "device_bytes"):
        first, last = windows[min(fifth, len(windows) - 1)][name], windows[-1][name]
        rows.append(f"{name:14} after the first fifth {first}, at the end {last}")
    return "\n".join(rows)


def main() -> None:
    """Run, and print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of a window")
    parser.add_argument("--percent", type=int, default=50)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    command = [sys.executable, __file__, "--worker", "--minutes", str(options.minutes), "--seconds", str(options.seconds)]
    env = {"LD_PRELOAD": str(options.library.resolve()), "GPULIMIT_TENANT": f"soak-{os.getpid()}", "GPULIMIT_COMPUTE": "100"}
    lines = []
    with subprocess.Popen([*command, "--percent", str(options.percent)], env=os.environ | env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                lines.append(json.loads(line))
                if options.out:  # written each time, so that an interrupted run still has results
                    options.out.write_text(json.dumps(lines, indent=1))
    print(table(lines, options.percent))


if __name__ == "__main__":
    main()
