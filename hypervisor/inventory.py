# SPDX-License-Identifier: Apache-2.0
"""The node's GPUs: which there are, and what NVML last said of each; shown to everybody in the state
segment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from hypervisor.core.events import EventLog
from hypervisor.core.model import Gpu, GpuSample, GpuUuid
from hypervisor.edge.segments import MOST_DEVICES, StateSegment
from hypervisor.errors import SegmentError

logger = logging.getLogger(__name__)


def note(events: EventLog, kind: str, text: str, *, tenant: str = "", level: int = logging.INFO) -> None:
    """Write an event down, for people and metrics, and log it; trouble that comes again, once a minute."""
    now_ns = time.time_ns()
    events.add(kind, text, now_ns=now_ns, tenant=tenant)
    if level < logging.WARNING or events.may_log(kind, tenant, now_ns=now_ns):
        logger.log(level, "%s: %s%s", kind, f"{tenant}: " if tenant else "", text)


class Inventory:
    """All GPUs seen since the start; one that NVML no longer shows keeps its place."""

    def __init__(self, state: StateSegment, events: EventLog) -> None:
        self.gpus: list[Gpu] = []
        """Their order is that of the entries in policies; it only grows."""
        self.samples: dict[GpuUuid, GpuSample] = {}
        self.trouble = ""
        """Why NVML does not answer."""
        self._state = state
        self._events = events

    def take(self, samples: tuple[GpuSample, ...]) -> bool:
        """NVML has answered; True if there is a GPU that was not known."""
        self.trouble = ""
        known = {gpu.uuid for gpu in self.gpus}
        fresh = [s.gpu for s in samples if s.gpu.uuid not in known][: MOST_DEVICES - len(known)]
        for gpu in fresh:
            self.gpus.append(gpu)
            note(self._events, "gpu_found", f"{gpu.uuid} {gpu.name}, {gpu.memory_bytes >> 20} MiB")
        for sample in samples:
            before = self.samples.get(sample.gpu.uuid)
            self.samples[sample.gpu.uuid] = sample
            if bool(sample.error) != bool(before and before.error):
                kind = "gpu_failed" if sample.error else "gpu_recovered"
                text = f"{sample.gpu.uuid}: {sample.error or 'answers again'}"
                note(self._events, kind, text, level=logging.WARNING)
        return bool(fresh)

    def failed(self, reason: str) -> None:
        """NVML has not answered."""
        if reason != self.trouble:
            note(self._events, "nvml_failed", reason, level=logging.WARNING)
        self.trouble = reason

    def show(self, tenants: Mapping[GpuUuid, int]) -> None:
        """Publish all; `tenants` counts those on each GPU."""
        now_ns = time.monotonic_ns()
        for index, gpu in enumerate(self.gpus):
            sample = self.samples[gpu.uuid]
            try:
                self._state.show(
                    index, sample, tenants=tenants.get(gpu.uuid, 0), now_ns=now_ns, gpus=len(self.gpus)
                )
            except SegmentError as error:
                logger.warning("%s", error)
