# SPDX-License-Identifier: Apache-2.0
"""The process that asks NVML: `python -m hypervisor.nvml_probe PERIOD_S` prints a JSON line a period.

It knows nothing of the daemon and ends when nobody reads it. A GPU that fails is reported with its error
and the others go on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")


def optional(call: Callable[[], T], default: T) -> T:
    """Return what a call says, or `default` where the GPU does not support it."""
    try:
        return call()
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NotFound, pynvml.NVMLError_NoPermission):
        return default


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Probe:
    """One NVML session."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, Any]] = {}

    def ask(self) -> dict[str, Any]:
        """Return a line's content."""
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            return {"error": f"nvmlDeviceGetCount: {error}"}
        rows = [self.ask_gpu(index) for index in range(count)]
        return {"gpus": [row for row in rows if row is not None]}

    def ask_gpu(self, index: int) -> dict[str, Any] | None:
        """Return a GPU's row; with `error` and the last good figures if it fails; None if it never
        answered.
        """
        try:
            self._known[index] = self.read(index)
        except pynvml.NVMLError as error:
            last = self._known.get(index)
            return {**last, "error": str(error)} if last else None
        return self._known[index]

    def read(self, index: int) -> dict[str, Any]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        processes: list[Any] = optional(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle), [])
        rates = optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle), None)
        return {
            "index": index,
            "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
            "name": text(pynvml.nvmlDeviceGetName(handle)),
            "memory_bytes": int(memory.total),
            "memory_used_bytes": int(memory.used),
            "utilisation_percent": None if rates is None else int(rates.gpu),
            "pids": [[int(p.pid), int(p.usedGpuMemory or 0)] for p in processes],
            "error": "",
        }


def main(period_s: float) -> None:
    parent = os.getppid()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(json.dumps({"error": f"nvmlInit: {error}"}), flush=True)
        return
    probe = Probe()
    while os.getppid() == parent:
        print(json.dumps(probe.ask()), flush=True)
        time.sleep(period_s)


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
