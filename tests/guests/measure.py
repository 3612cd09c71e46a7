# SPDX-License-Identifier: Apache-2.0
"""What collecting costs: `python -m tests.guests.measure`. 50 guests behind sockets, 5 of which hang."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.guests import pages
from tests.guests.conftest import PORT, Machine, listing
from tests.remote.exporters import hang, page

GUESTS, HUNG = 50, 5
SETTLE_S, MEASURE_S = 10.0, 30.0
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return a process's CPU time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="guests-") as name:
        folder = Path(name)
        machines = [Machine(f"guest-{n}", folder / f"{n}.sock") for n in range(GUESTS)]
        for number, one in enumerate(machines):
            one.start(hang if number < HUNG else page(pages.own(number)))
        path = folder / "guests.toml"
        path.write_text(listing(*machines))
        argv = [
            "--guests",
            str(path),
            "--metrics-addr",
            "127.0.0.1:0",
            "--lock",
            "",
            "--log-level",
            "warning",
        ]
        process = subprocess.Popen([sys.executable, "-P", "-m", "hypervisor.guests.collector_main", *argv])
        try:
            time.sleep(SETTLE_S)
            begin_s, begin_cpu_s = time.monotonic(), cpu_s(process.pid)
            time.sleep(MEASURE_S)
            share = (cpu_s(process.pid) - begin_cpu_s) / (time.monotonic() - begin_s)
            files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
            print(f"{GUESTS} guests at port {PORT}, {HUNG} of them hang, each asked every 3.25 s:")
            print(f"  {share:.1%} of a core, {memory_kib(process.pid) // 1024} MiB, {files} open files")
        finally:
            process.terminate()
            process.wait(10)
            for one in machines:
                one.stop()


if __name__ == "__main__":
    main()
