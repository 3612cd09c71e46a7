# SPDX-License-Identifier: Apache-2.0
"""Watches from outside, without the library, what the first card holds for a process group.

python watch.py GROUP       until its input ends; then prints the peak, in bytes, and the number of readings
"""

from __future__ import annotations

import json
import os
import select
import sys

import pynvml

PAUSE_S = 0.003


def is_of(group: int, pid: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except OSError:
        return False


def main() -> None:
    group = int(sys.argv[1])
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    peak = readings = 0
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        rows = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        held = sum(row.usedGpuMemory or 0 for row in rows if is_of(group, row.pid))
        peak = max(peak, held)
        readings += held > 0
    print(json.dumps({"peak_bytes": peak, "readings": readings}), flush=True)


if __name__ == "__main__":
    main()
