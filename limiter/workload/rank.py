# SPDX-License-Identifier: Apache-2.0
"""One rank of a job, as a process of its own; `limiter.workload.job` starts it.

A rank queues at most two batches of steps ahead.  If no step completes within the job's time-out, the rank
ends with an error, as NCCL's watchdog does.  The error names the rank that was lost, if there is one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_size_t
from pathlib import Path
from typing import Any

from limiter.cuda import CudaDevice, DevicePointer, Driver, Handle
from limiter.errors import GpulimitError
from limiter.workload import kernels, waiting
from limiter.workload.job_settings import ALLREDUCE, PIPELINE, JobSettings
from limiter.workload.settings import BATCHES_QUEUED, WorkloadSettings
from limiter.workload.stream_queue import STREAM_NON_BLOCKING, Launch, new_mark

WORDS_BYTES = 2 << 20
"""Size of the shared words in rank 0's device memory: a counter, then a flag per rank."""
WORD_BYTES = 8
LAZY_PEER_ACCESS = 1
SAMPLE_S = 0.1
TIMED_OUT = 3


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", ctypes.c_byte * 64),)


class Parent:
    """Connection to the parent: the messages received so far by name, and messages to the parent."""

    def __init__(self) -> None:
        self._heard: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._lock = threading.Lock()

    def listen(self) -> None:
        """Receive messages until the parent ends, then end this process."""
        for line in sys.stdin:
            with self._changed:
                self._heard |= json.loads(line)
                self._changed.notify_all()
        os._exit(1)

    def heard(self, name: str) -> Any:
        with self._changed:
            return self._heard.get(name)

    def wait(self, name: str) -> Any:
        """Wait for the message `name` and return its value.  Raises GpulimitError if a rank is lost."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._heard or "lost" in self._heard)
            if name not in self._heard:
                raise GpulimitError(str(self._heard["lost"]))
            return self._heard[name]

    def tell(self, **message: Any) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()


class Words:
    """The job's shared words.  Rank 0 allocates them, and the other ranks open them through CUDA IPC."""

    def __init__(self, driver: Driver, rank: int, parent: Parent, *, is_needed: bool) -> None:
        """Allocate or open the words.  If `is_needed` is False, nothing is shared between the ranks."""
        pointer, handle = DevicePointer(), IpcHandle()
        self.counter = 0
        if not is_needed:
            if rank == 0:
                parent.tell(handle="")
            return
        if rank == 0:
            driver.call("cuMemAlloc_v2", byref(pointer), c_size_t(WORDS_BYTES))
            driver.call("cuMemsetD32_v2", pointer, 0, c_size_t(WORDS_BYTES // 4))
            driver.call("cuCtxSynchronize")
            driver.call("cuIpcGetMemHandle", byref(handle), pointer)
            parent.tell(handle=bytes(handle).hex())
        else:
            data = bytes.fromhex(parent.wait("handle"))
            handle = IpcHandle.from_buffer_copy(data)
            driver.call("cuIpcOpenMemHandle_v2", byref(pointer), handle, LAZY_PEER_ACCESS)
        self.counter = int(pointer.value or 0)

    def flag(self, rank: int) -> int:
        """Return the address of a rank's flag."""
        return self.counter + WORD_BYTES * (1 + rank)


class Rank:
    """One rank: its GPU, its stream, and its steps."""

    def __init__(self, settings: JobSettings, number: int, began: float, parent: Parent) -> None:
        """Take the GPU and meet the other ranks.  Raises GpulimitError."""
        self._settings = settings
        self.number = number
        self._began = began
        self._parent = parent
        driver = Driver(Path(settings.simulated) if settings.simulated else None)
        self._driver = driver
        self.device: CudaDevice = driver.device(settings.device_of(number))
        self.context = self.device.use()
        self._words = Words(driver, number, parent, is_needed=settings.mode in (ALLREDUCE, PIPELINE))
        module, own = Handle(), waiting.load(driver)
        driver.call("cuModuleLoadData", byref(module), kernels.PTX)
        workload = WorkloadSettings(kernel_ns=settings.kernel_ns)
        self._compute = Launch(driver, module, workload, (settings.kernel_ns, 0))
        self._barrier = waiting.WaitingKernel(driver, own, waiting.BARRIER, 3)
        self._await = waiting.WaitingKernel(driver, own, waiting.AWAIT, 4)
        self._set = waiting.WaitingKernel(driver, own, waiting.SET, 2)
        self._stream = Handle()
        driver.call("cuStreamCreate", byref(self._stream), STREAM_NON_BLOCKING)
        self._marks: list[tuple[Handle, int]] = []
        self.queued = 0
        self.done = 0
        self.first_step_s = 0.0
        self.longest_gap_s = 0.0
        self.samples: list[tuple[float, int]] = []
        self.progress_at = time.monotonic()

    def _step(self) -> None:
        settings, stream = self._settings, self._stream
        self.queued += 1
        last = settings.ranks - 1
        if settings.mode == PIPELINE and self.number > 0:
            self._await(stream, self._words.flag(self.number), self.queued, 0, 0)
        for _ in range(settings.kernels):
            self._compute(stream)
        if settings.mode == PIPELINE and self.number < last:
            self._set(stream, self._words.flag(self.number + 1), self.queued)
        if settings.mode == ALLREDUCE:
            target = settings.ranks * self.queued
            self._barrier(stream, self._words.counter, target, settings.collective_ns)

    def _batch(self, steps: int) -> None:
        """Queue `steps` steps.  Wait first until fewer than BATCHES_QUEUED batches are queued."""
        while len(self._marks) >= BATCHES_QUEUED:
            self._retire()
        for _ in range(steps):
            self._step()
        mark = new_mark(self._driver)
        self._driver.call("cuEventRecord", mark, self._stream)
        self._marks.append((mark, self.queued))

    def _retire(self) -> None:
        """Wait for the oldest batch and record its progress."""
        mark, steps = self._marks.pop(0)
        self._driver.call("cuEventSynchronize", mark)
        self._driver.call("cuEventDestroy_v2", mark)
        now = time.monotonic()
        if self.done:
            self.longest_gap_s = max(self.longest_gap_s, now - self.progress_at)
        self.done = steps
        self.progress_at = now
        if not self.samples or now - self.samples[-1][0] >= SAMPLE_S:
            self.samples.append((now, steps))

    def _drain(self) -> None:
        while self._marks:
            self._retire()

    def run(self) -> None:
        """Run the configured number of steps, or up to the step that the parent names after a pause."""
        self._batch(1)
        self._drain()
        self.first_step_s = self.progress_at - self._began
        bound = self._settings.steps
        while bound == 0 or self.queued < bound:
            if self._parent.heard("pause") and not bound:
                self._parent.tell(paused=self.queued)
                bound = self._parent.wait("finish")
            steps = self._settings.batch
            steps = min(steps, bound - self.queued) if bound else steps
            if steps > 0:
                self._batch(steps)
        self._drain()
        self.samples.append((self.progress_at, self.done))

    def result(self) -> dict[str, Any]:
        first, last = self.samples[0], self.samples[-1]
        seconds = last[0] - first[0]
        return {
            "rank": self.number,
            "pid": os.getpid(),
            "device": self.device.name,
            "simulated": self._driver.is_simulated,
            "ordinal": self.device.ordinal,
            "steps": self.done,
            "seconds": round(seconds, 6),
            "steps_per_s": round((last[1] - first[1]) / seconds, 3) if seconds > 0 else 0.0,
            "first_step_s": round(self.first_step_s, 6),
            "longest_gap_s": round(self.longest_gap_s, 6),
            "samples": [[round(at, 6), steps] for at, steps in self.samples],
        }


def watch(rank: Rank, parent: Parent, timeout_s: float) -> None:
    """End the process if no batch of the rank has completed for `timeout_s`."""
    while True:
        time.sleep(min(0.1, timeout_s / 10))
        quiet = time.monotonic() - rank.progress_at
        if quiet < timeout_s:
            continue
        lost = parent.heard("lost")
        why = lost or "no rank has ended"
        parent.tell(
            error=f"rank {rank.number}: step {rank.done + 1} has not ended for {timeout_s:.1f} s: {why}"
        )
        os._exit(TIMED_OUT)


def start_thread(body: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=body, args=arguments, daemon=True).start()


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the parent ends all ranks at the same step
    parent = Parent()
    start_thread(parent.listen)
    settings = JobSettings.of_data(parent.wait("settings"))
    number, began = int(parent.wait("rank")), float(parent.wait("began"))
    try:
        rank = Rank(settings, number, began, parent)
        parent.tell(ready=time.monotonic() - began)
        parent.wait("go")
        rank.progress_at = time.monotonic()
        start_thread(watch, rank, parent, settings.timeout_ns / 1e9)
        rank.run()
    except GpulimitError as error:
        parent.tell(error=f"rank {number}: {error}")
        return 1
    parent.tell(result=rank.result())
    with contextlib.suppress(GpulimitError):
        parent.wait("end")  # until then other ranks may read rank 0's memory
    return 0


if __name__ == "__main__":
    sys.exit(main())
