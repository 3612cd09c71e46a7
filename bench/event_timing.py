# SPDX-License-Identifier: Apache-2.0
"""Measures how exactly timing events around a single launch show a kernel's length. Source of csrc/time's constants.

    python bench/event_timing.py --out event_timing.json

Kernels of several lengths are launched one at a time, with an idle stream and with a backlog. Their true length comes
from the profiler (CUPTI, through torch). A `pair` is the time between two events recorded back to back. Columns, as
medians in us: the kernel, the time between the events, the launch call, the recording of the second event. `rest`: the
time between the events less the kernel and, with an idle stream, less the launch call, in pairs. `late`: fraction of
the launches whose second event reached the GPU only after the kernel's end. These give only an upper bound.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = r"""
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}"""
CYCLES = (0, 500, 1000, 2000, 3000, 4000, 6000, 10000, 20000, 50000, 100000)
COUNT = 400
GAP_NS = 15000.0
FIELDS = ("between", "launch", "second", "first")


def library(folder: Path) -> ctypes.CDLL:
    """Compile event_timing.c in `folder` and load it."""
    target = folder / "event_timing.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", target, HERE / "event_timing.c", "-l:libcuda.so.1"], check=True)
    found = ctypes.CDLL(str(target))
    found.pair_ns.restype = ctypes.c_double
    return found


def kernel_ns(kernel: Any, cycles: int) -> float:
    """Return a kernel's median length by the profiler, in ns."""
    import cupy
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(200):
            kernel((1,), (32,), (cupy.int64(cycles),))
        torch.cuda.synchronize()
    spans = [e.time_range.end - e.time_range.start for e in profiler.events() if e.name == "spin"]
    return 1000 * statistics.median(spans)


def brackets(lib: ctypes.CDLL, function: int, cycles: int, gap_ns: float) -> list[dict[str, float]]:
    """Return the event times around single launches, in ns."""
    out = (ctypes.c_double * (len(FIELDS) * COUNT))()
    lib.brackets(ctypes.c_void_p(function), ctypes.c_longlong(cycles), ctypes.c_longlong(60000), ctypes.c_double(gap_ns), out, COUNT)
    rows = [out[i : i + len(FIELDS)] for i in range(0, len(out), len(FIELDS))]
    return [dict(zip(FIELDS, row, strict=True)) for row in rows[COUNT // 10 :]]


def line(name: str, cycles: int, kernel: float, pair: float, found: list[dict[str, float]], backlog: bool) -> str:
    """Return one row of the table."""
    middle = {field: statistics.median(b[field] for b in found) for field in FIELDS}
    host = [0.0 if backlog else b["launch"] for b in found]
    rests = [(b["between"] - h - kernel) / pair for b, h in zip(found, host, strict=True)]
    late = statistics.mean(b["between"] < b["launch"] + b["second"] + 300 for b in found) if not backlog else 0.0
    quarters = statistics.quantiles(rests, n=4)
    cells = " ".join(f"{middle[f] / 1000:8.2f}" for f in ("between", "launch", "second"))
    return f"{name:8} {cycles:7d} {kernel / 1000:8.2f} {cells} {quarters[1]:7.2f} ({quarters[0]:.2f}..{quarters[2]:.2f}) {late:6.2f}"


def main() -> None:
    """Measure and print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import cupy
    import torch

    torch.cuda.init()
    kernel = cupy.RawKernel(SOURCE, "spin", backend="nvrtc")
    kernel((1,), (32,), (cupy.int64(0),))
    rows, data = [], []
    with tempfile.TemporaryDirectory() as folder:
        lib = library(Path(folder))
        function = kernel.kernel.ptr
        pair = lib.pair_ns(ctypes.c_void_p(function), ctypes.c_longlong(60000))
        for cycles in CYCLES:
            length = kernel_ns(kernel, cycles)
            for name, gap in (("idle", GAP_NS), ("backlog", 0.0)):
                found = brackets(lib, function, cycles, gap)
                data.append({"kind": name, "cycles": cycles, "kernel_ns": length, "pair_ns": pair, "brackets": found})
                rows.append(line(name, cycles, length, pair, found, name == "backlog"))
    if options.out:
        options.out.write_text(json.dumps(data))
    print(f"pair {pair:.0f} ns\nkind      cycles   kernel  between   launch   second    rest (quartiles)   late")
    print("\n".join(sorted(rows, key=lambda r: r.split()[0])))


if __name__ == "__main__":
    main()
