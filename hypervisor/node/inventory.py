# SPDX-License-Identifier: Apache-2.0
"""The node's GPUs and NVML's last sample of each, which the state segment shows to every process."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Set
from dataclasses import replace

from hypervisor.errors import SegmentError
from hypervisor.model import FailedCard, Gpu, GpuSample, GpuUuid
from hypervisor.node.events import EventLog, record_event
from hypervisor.shm.segments import MAX_DEVICES, StateSegment

logger = logging.getLogger(__name__)
UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
MAX_UNSUPPORTED = 256
MEMORY_SOURCES = {
    "nvml": "NVML",
    "cuda": "CUDA: NVML has no total",
    "option": "gpu_memory: NVML has no total",
}


class Inventory:
    """All GPUs seen since the start. A GPU that NVML no longer lists keeps its entry. Only a MIG device loses
    it
    if the entry is needed.
    """

    def __init__(self, state: StateSegment, events: EventLog) -> None:
        self.gpus: list[Gpu] = []
        """Cards and MIG devices. Their order is that of the entries in policies."""
        self.samples: dict[GpuUuid, GpuSample] = {}
        self.nvml_error = ""
        """Reason that NVML does not answer, or ""."""
        self.failed_cards: tuple[FailedCard, ...] = ()
        """Cards that NVML counts but cannot sample."""
        self._state = state
        self._events = events
        self._listed: frozenset[GpuUuid] = frozenset()
        """GPUs in NVML's last answer."""
        self._unsupported: set[GpuUuid] = set()
        self._mig_errors: dict[GpuUuid, str] = {}

    def update(self, samples: tuple[GpuSample, ...], *, in_use: Set[GpuUuid] = frozenset()) -> bool:
        """Take NVML's answer; return True if there is a new GPU. GPUs `in_use` keep their entries."""
        self.nvml_error = ""
        known = {gpu.uuid for gpu in self.gpus}
        listed = self._listed = frozenset(sample.gpu.uuid for sample in samples)
        fresh = [s.gpu for s in samples if s.gpu.uuid not in known]
        assigned = [gpu for gpu in fresh if self._assign_entry(gpu, listed | in_use)]
        for sample in samples:
            self._report_mig_error(sample)
            if sample.gpu.uuid not in known and sample.gpu not in assigned:
                continue
            before = self.samples.get(sample.gpu.uuid)
            self.samples[sample.gpu.uuid] = sample
            self._report_memory_source(sample, before)
            if bool(sample.error) != bool(before and before.error):
                kind = "gpu_failed" if sample.error else "gpu_recovered"
                text = f"{sample.gpu.uuid}: {sample.error or 'answers again'}"
                record_event(self._events, kind, text, level=logging.WARNING)
        return bool(assigned)

    def update_failed_cards(self, cards: tuple[FailedCard, ...]) -> None:
        """Take the unusable cards of NVML's last answer, and report changes."""
        before = {card.index: card for card in self.failed_cards}
        self.failed_cards = cards
        for card in cards:
            known = before.pop(card.index, None)
            if known is None or known.error != card.error:
                text = f"card {card.index} {card.uuid}".rstrip() + f" cannot be used: {card.error}"
                record_event(self._events, "gpu_failed", text, level=logging.ERROR)
        for index in before:
            record_event(self._events, "gpu_recovered", f"card {index} answers, or is not there any more")

    def _report_memory_source(self, sample: GpuSample, before: GpuSample | None) -> None:
        """Report once that a card's memory total does not come from NVML."""
        if sample.memory_source != (before.memory_source if before is not None else "nvml"):
            source = MEMORY_SOURCES.get(sample.memory_source, sample.memory_source)
            text = f"{sample.gpu.uuid}: {sample.gpu.memory_bytes >> 20} MiB of memory by {source}"
            record_event(self._events, "memory_total", text, level=logging.WARNING)

    def _assign_entry(self, gpu: Gpu, kept: Set[GpuUuid]) -> bool:
        """Give a GPU an entry. Return False if there is none; then no tenant can use the GPU."""
        if not UUID.fullmatch(gpu.uuid):
            self._reject(gpu, "its UUID is of a form that CUDA does not give")
            return False
        if len(self.gpus) < MAX_DEVICES:
            self.gpus.append(gpu)
        else:
            spare = (i for i, g in enumerate(self.gpus) if g.mig is not None and g.uuid not in kept)
            place = next(spare, None)
            if place is None:
                self._reject(gpu, f"a node has at most {MAX_DEVICES} cards and MIG devices under quota")
                return False
            self.samples.pop(self.gpus[place].uuid, None)
            self.gpus[place] = gpu
        record_event(self._events, "gpu_found", f"{gpu.uuid} {gpu.name}, {gpu.memory_bytes >> 20} MiB")
        return True

    def _reject(self, gpu: Gpu, reason: str) -> None:
        if gpu.uuid not in self._unsupported and len(self._unsupported) < MAX_UNSUPPORTED:
            self._unsupported.add(gpu.uuid)
            record_event(
                self._events, "gpu_left_out", f"{gpu.uuid} {gpu.name}: {reason}", level=logging.ERROR
            )

    def _report_mig_error(self, sample: GpuSample) -> None:
        """Report once the reason that a card's MIG devices cannot be read, and once that they can again."""
        before = self._mig_errors.get(sample.gpu.uuid, "")
        if sample.mig_error != before:
            kind = "mig_failed" if sample.mig_error else "mig_recovered"
            text = f"{sample.gpu.uuid}: {sample.mig_error or 'its MIG devices can be read again'}"
            record_event(self._events, kind, text, level=logging.WARNING)
            self._mig_errors[sample.gpu.uuid] = sample.mig_error

    @property
    def present(self) -> list[Gpu]:
        """Return all cards ever seen, and the current MIG devices."""
        return [gpu for gpu in self.gpus if gpu.mig is None or gpu.uuid in self._listed]

    def on_nvml_failure(self, reason: str) -> None:
        """Note that NVML has not answered."""
        if reason != self.nvml_error:
            record_event(self._events, "nvml_failed", reason, level=logging.WARNING)
        self.nvml_error = reason

    def publish(self, tenants: Mapping[GpuUuid, int]) -> None:
        """Publish all GPUs; `tenants` is the number of tenants on each."""
        now_ns = time.monotonic_ns()
        for index, gpu in enumerate(self.gpus):
            sample = self.samples[gpu.uuid]
            if gpu.uuid not in self._listed and not sample.error:
                sample = replace(sample, error="NVML does not list it any more")
            try:
                self._state.show(
                    index, sample, tenants=tenants.get(gpu.uuid, 0), now_ns=now_ns, gpus=len(self.gpus)
                )
            except SegmentError as error:
                logger.warning("%s", error)
