# SPDX-License-Identifier: Apache-2.0
"""One tenant of bench/fair.py: a process that runs workloads on command.

Reads JSON lines on stdin: {"run": NAME, "seconds": S, "at": MONOTONIC} answers {"rate", "by_tenth"};
{"requests": COUNT_OF_KERNELS, "every": S, "seconds": S, "at": MONOTONIC} answers the latencies of periodic requests;
{"stop_at": MONOTONIC} ends. Workloads are prepared at their first use: {"prepare": NAME}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


def wait_until(moment: float) -> None:
    """Sleep up to a moment of time.monotonic(), which all processes of a machine share."""
    time.sleep(max(0.0, moment - time.monotonic()))


class Tenant:
    """Prepared workloads by name."""

    def __init__(self) -> None:
        self.loads: dict[str, Any] = {}

    def prepare(self, name: str) -> Any:
        import share
        import workloads

        if name not in self.loads:
            self.loads[name] = workloads.ALL[name]()
            share.window(self.loads[name], 0.2)
        return self.loads[name]

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run one workload for a while."""
        import share

        load = self.prepare(command["run"])
        wait_until(command["at"])
        rate, by_second = share.window(load, command["seconds"])
        return {"rate": rate, "by_second": by_second}

    def requests(self, command: dict[str, Any]) -> dict[str, Any]:
        """Serve a request of some kernels every so often; latencies in ms."""
        load = self.prepare("memory_bound")
        wait_until(command["at"])
        end, due, took = command["at"] + command["seconds"], time.monotonic(), []
        while due < end:
            wait_until(due)
            start = time.monotonic()
            for _ in range(command["requests"]):
                load.step()
            load.sync()
            took.append((time.monotonic() - start) * 1e3)
            due = max(due + command["every"], time.monotonic())
        took.sort()
        return {"p50": took[len(took) // 2], "p99": took[int(len(took) * 0.99)], "count": len(took)}


def main() -> None:
    """Serve commands until stdin ends."""
    tenant = Tenant()
    for line in sys.stdin:
        command = json.loads(line)
        if "prepare" in command:
            tenant.prepare(command["prepare"])
            answer: dict[str, Any] = {"prepared": command["prepare"]}
        elif "run" in command:
            answer = tenant.run(command)
        else:
            answer = tenant.requests(command)
        print("ANSWER " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
