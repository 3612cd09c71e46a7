# SPDX-License-Identifier: Apache-2.0
"""A process that runs workloads on command, for fair.py and overhead.py.

Reads JSON lines on stdin and answers each with one line "ANSWER {…}". Times are those of time.monotonic(), which all
processes of a machine share. "at" is the time to begin.

    {"prepare": NAME}                                            prepares a workload, which its first use does too
    {"run": NAME, "seconds": S, "at": T}                         {"rate", "by_second"}
    {"duty": NAME}                                               {"step_s"}: GPU time of a step
    {"watch": NAME, "seconds": S, "at": T}                       {"times": [[T, STEPS DONE]…]}
    {"pulses": NAME, "on": S, "off": S, "count": N, "at": T}     {"pulses": [{"times": …, "begin", "end"}…]}
    {"requests": KERNELS, "every": S, "seconds": S, "at": T}     {"ms"}: how long each took
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
DUTY_S = 0.3


def wait_until(moment: float) -> None:
    """Sleep up to a moment of time.monotonic()."""
    time.sleep(max(0.0, moment - time.monotonic()))


def completions(load: Any, until: float) -> list[tuple[float, int]]:
    """Run up to a moment. Return the time and the number of steps done, about every 2 ms of work."""
    marks: deque[tuple[Any, int]] = deque()
    times: list[tuple[float, int]] = []
    steps = 0
    while time.monotonic() < until:
        for _ in range(load.check_every):
            load.step()
        steps += load.check_every
        marks.append((load.mark(), steps))
        while len(marks) > load.ahead:
            mark, done = marks.popleft()
            mark.synchronize()
            times.append((time.monotonic(), done))
    for mark, done in marks:
        mark.synchronize()
        times.append((time.monotonic(), done))
    return times


class Tenant:
    """Prepared workloads by name."""

    def __init__(self) -> None:
        self.loads: dict[str, Any] = {}

    def prepare(self, name: str) -> Any:
        import share

        if os.environ.get("GPULIMIT_TEST_GPU") == "sim":
            import simulated_workloads as workloads
        else:
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

    def duty(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return the GPU time of a step, by the workload's own count or by the profiler."""
        import share

        load = self.prepare(command["duty"])
        if load.busy_s:
            load.busy_s()
            rate, _ = share.window(load, DUTY_S)
            return {"step_s": load.busy_s() / (rate * DUTY_S)}
        return {"step_s": share.gpu_seconds_per_step(load, 200)}

    def watch(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run one workload and return the times of its completed steps."""
        load = self.prepare(command["watch"])
        wait_until(command["at"])
        return {"times": completions(load, command["at"] + command["seconds"])}

    def pulses(self, command: dict[str, Any]) -> dict[str, Any]:
        """Work and pause in turn."""
        load = self.prepare(command["pulses"])
        found = []
        for n in range(command["count"]):
            begin = command["at"] + n * (command["on"] + command["off"])
            wait_until(begin)
            times = completions(load, begin + command["on"])
            found.append({"begin": begin, "times": times, "end": time.monotonic()})
        return {"pulses": found}

    def requests(self, command: dict[str, Any]) -> dict[str, Any]:
        """Serve requests of a number of kernels at a fixed interval."""
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
        return {"ms": took}


def main() -> None:
    """Serve commands until stdin ends."""
    tenant = Tenant()
    for line in sys.stdin:
        command = json.loads(line)
        kind = next(iter(command))
        if kind == "prepare":
            tenant.prepare(command[kind])
            answer: dict[str, Any] = {"prepared": command[kind]}
        else:
            answer = getattr(tenant, kind)(command)
        print("ANSWER " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
