# SPDX-License-Identifier: Apache-2.0
"""The process that asks NVML: `python -m hypervisor.nvml.probe PERIOD_S` prints a JSON line a period.

It knows nothing of the daemon and ends when nobody reads it. A GPU that fails is reported with its error
and the others go on. NVML is begun anew now and then, since it counts the GPUs only then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import pynvml

from hypervisor.nvml.fields import GPU_IS_LOST, Fields
from hypervisor.nvml.mig import MigReader
from hypervisor.nvml.processes import processes_on
from hypervisor.nvml.raw import Raw
from hypervisor.nvml.vgpu import VgpuReader
from hypervisor.nvml.xid_events import XidEvents, text

RECOUNT_S = 60.0
MOST_GPUS = 64


class Probe:
    """One NVML session."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._known: dict[int, dict[str, Any]] = {}
        self._fields = Fields()
        self._raw = Raw(self._fields.errors)
        self._vgpu, self._mig = VgpuReader(self._raw), MigReader(self._raw)
        self._events = XidEvents()
        self._driver = self._fields.ask(pynvml.nvmlSystemGetDriverVersion) or ""
        self._began_at = time.monotonic()

    def ask(self) -> dict[str, Any]:
        """Return a line's content."""
        begin = time.monotonic()
        self._fields.errors.clear()
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            return {"error": f"nvmlDeviceGetCount: {error}", "code": str(error.value)}
        if count > MOST_GPUS:
            self._fields.errors["count"] += 1
            count = MOST_GPUS
        self._events.listen(count)
        rows = [self.ask_gpu(index) for index in range(count)]
        return {
            "gpus": [row for row in rows if row is not None],
            "errors": dict(self._fields.errors),
            "duration_s": time.monotonic() - begin,
        }

    def ask_gpu(self, index: int) -> dict[str, Any] | None:
        """Return a GPU's row; with `error` and the last good figures if it fails; None if it never
        answered.
        """
        try:
            self._known[index] = self.read(index)
        except pynvml.NVMLError as error:
            self._fields.errors[str(error.value)] += 1
            last = self._known.get(index)
            if last is None:
                return None
            kept = {"vgpu": self._vgpu.failed(last["uuid"]), "mig": self._mig.failed(last["uuid"])}
            return {**last, "error": str(error), "lost": error.value == GPU_IS_LOST, **kept}
        return self._known[index]

    def read(self, index: int) -> dict[str, Any]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        uuid = text(pynvml.nvmlDeviceGetUUID(handle))
        return {
            "index": index,
            "uuid": uuid,
            "name": text(pynvml.nvmlDeviceGetName(handle)),
            "minor": self._fields.ask(pynvml.nvmlDeviceGetMinorNumber, handle),
            "memory_bytes": int(memory.total),
            "memory_used_bytes": int(memory.used),
            "memory_free_bytes": int(memory.free),
            "driver_version": text(self._driver),
            **self._fields.of(handle),
            "pids": processes_on(self._raw, handle),
            "vgpu": self._vgpu.of(handle, uuid),
            "mig": self._mig.of(handle, uuid),
            "error": "",
            "lost": False,
        }

    def pause(self, seconds: float) -> list[list[Any]]:
        """Wait for the next period; return the Xid errors that came meanwhile."""
        xids = self._events.wait(seconds)
        if time.monotonic() - self._began_at >= RECOUNT_S:
            self._mig.close()
            pynvml.nvmlShutdown()
            pynvml.nvmlInit()
            self._events = XidEvents()
            self._began_at = time.monotonic()
        return xids


def main(period_s: float) -> None:
    parent = os.getppid()
    xids: list[list[Any]] = []
    try:
        probe = Probe()
        while os.getppid() == parent:
            print(json.dumps({**probe.ask(), "xids": xids}), flush=True)
            xids = probe.pause(period_s)
    except pynvml.NVMLError as error:
        print(json.dumps({"error": f"nvmlInit: {error}", "code": str(error.value)}), flush=True)


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
