# SPDX-License-Identifier: Apache-2.0
"""One card's reader: a thread, so that a call that hangs for one card holds up no other card.

A thread that hangs stays until its call returns. There is one for each card and never a second, so a card
that hangs for ever costs one thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pynvml

from hypervisor.nvml.fields import GPU_IS_LOST, Fields
from hypervisor.nvml.mig import MigReader
from hypervisor.nvml.processes import processes_on
from hypervisor.nvml.raw import Raw
from hypervisor.nvml.totals import Totals, Unknown
from hypervisor.nvml.vgpu import VgpuReader
from hypervisor.nvml.xid_events import XidEvents, text

IDENTITY = (
    "index",
    "uuid",
    "name",
    "profile",
    "gpu_instance",
    "compute_instance",
    "memory_bytes",
    "error",
)
"""Fields that stay of a MIG device while its card does not answer."""


class CardReader:
    """Reads a card when asked to. Main thread only, but for `_run` and `_read`."""

    def __init__(
        self, index: int, driver: str, totals: Totals, events: XidEvents, done: threading.Condition
    ) -> None:
        """`done` is told when the card has answered; it guards what is shared with the thread."""
        self.index = index
        self.driver = driver
        self.events = events
        self._totals = totals
        self._done = done
        self._wanted = threading.Event()
        self._is_ending = False
        self.begun_at_s = 0.0
        """Begin of the reading that is going on, by time.monotonic(); 0: none is."""
        self._row: dict[str, Any] | None = None
        """The last good row."""
        self._failure: dict[str, Any] | None = None
        """Error of the last reading; None: it went well."""
        self._errors: Counter[str] = Counter()
        self._fields = Fields()
        self._raw = Raw(self._fields.errors)
        self._vgpu, self._mig = VgpuReader(self._raw), MigReader(self._raw)
        self._uuid = ""
        self._is_mig = False
        threading.Thread(target=self._run, name=f"card {index}", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        return self.begun_at_s > 0

    def begin(self) -> None:
        """Start a reading, unless one is going on."""
        if not self.is_busy:
            self.begun_at_s = time.monotonic()
            self._wanted.set()

    def end(self) -> None:
        """Let the thread end, once it is back."""
        self._is_ending = True
        self._wanted.set()

    def close(self) -> None:
        """NVML is about to be shut down; the reader is not busy."""
        self._mig.close()

    def forget(self) -> None:
        """Ask again for what was not supported; the reader is not busy."""
        self._fields.forget()
        self._raw.forget()

    def take_errors(self) -> Counter[str]:
        """Return what went wrong since the last call, by NVML's number. `done` is held."""
        errors, self._errors = self._errors, Counter()
        return errors

    def report(self, silent_s: float) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Return the card's row, and why it is bad, if it is. `done` is held.

        A card that fails has its last good row, with the error in it; before its first it has none. A card
        that has not answered for `silent_s` fails, too.
        """
        row, failure = self._row, self._failure
        if self.is_busy and time.monotonic() - self.begun_at_s >= silent_s:
            failure = self._failed(f"NVML has not answered for {silent_s:g} s", is_lost=False)
            row = row and {**row, "vgpu": None, "mig": without_figures(row["mig"])}
        if failure is None or row is None:
            return row, failure
        return {**row, "error": failure["error"], "lost": failure["lost"]}, failure

    def _failed(self, error: str, *, is_lost: bool) -> dict[str, Any]:
        return {"index": self.index, "uuid": self._uuid, "error": error, "lost": is_lost}

    # ---- on its thread ----

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._is_ending:
                return
            row, failure = self._try()
            with self._done:
                self._errors += self._fields.errors
                self._fields.errors.clear()
                self._failure = failure
                if row is not None:
                    self._row = row
                elif self._row is not None:
                    kept = {"vgpu": self._vgpu.failed(self._uuid), "mig": self._mig.failed(self._uuid)}
                    self._row = {**self._row, **kept}
                self.begun_at_s = 0.0
                self._done.notify_all()

    def _try(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        try:
            return self._read(), None
        except pynvml.NVMLError as error:
            self._fields.errors[str(error.value)] += 1
            return None, self._failed(str(error), is_lost=error.value == GPU_IS_LOST)
        except Unknown as error:
            self._fields.errors["no_memory_total"] += 1
            return None, self._failed(str(error), is_lost=False)
        except Exception as error:  # a reader that ends would look like a card that hangs
            self._fields.errors["unknown"] += 1
            return None, self._failed(f"{type(error).__name__}: {error}", is_lost=False)

    def _read(self) -> dict[str, Any]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(self.index)
        uuid = text(pynvml.nvmlDeviceGetUUID(handle))
        if uuid != self._uuid:
            self._uuid = uuid
            self.forget()
        self.events.listen(handle, uuid)
        mig = self._mig.of(handle, uuid)
        is_mig = bool(mig and mig["enabled"])
        if is_mig != self._is_mig:
            self._is_mig = is_mig  # a card in MIG mode supports less
            self.forget()
        ask = self._fields.ask
        pids = processes_on(self._raw, handle)
        return {
            "index": self.index,
            "uuid": uuid,
            "name": text(ask(pynvml.nvmlDeviceGetName, handle) or ""),
            "minor": ask(pynvml.nvmlDeviceGetMinorNumber, handle),
            **self._memory(handle, uuid, pids),
            "driver_version": self.driver,
            **self._fields.of(handle),
            "pids": pids,
            "vgpu": self._vgpu.of(handle, uuid),
            "mig": mig,
            "error": "",
            "lost": False,
        }

    def _memory(self, handle: Any, uuid: str, pids: list[list[int | None]] | None) -> dict[str, Any]:
        """Return total, used and free memory, and who says the total. Raises NVMLError, Unknown."""
        memory = self._fields.ask_or_fail(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is not None and memory.total:
            return {
                "memory_bytes": int(memory.total),
                "memory_used_bytes": int(memory.used),
                "memory_free_bytes": int(memory.free),
                "memory_source": "nvml",
            }
        total, source = self._totals.of(uuid, self.index)
        held = [one[1] for one in pids] if pids is not None else [None]
        used = None if None in held else sum(filter(None, held))
        return {
            "memory_bytes": total,
            "memory_used_bytes": used,
            "memory_free_bytes": None if used is None else max(0, total - used),
            "memory_source": source,
        }


def without_figures(mig: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a card's MIG row as it names its devices, without what they use."""
    if mig is None:
        return None
    return {**mig, "instances": [{k: part[k] for k in IDENTITY} for part in mig["instances"]]}
