# SPDX-License-Identifier: Apache-2.0
"""Converts virtual machines and their GPUs to samples. Pure."""

from __future__ import annotations

from hypervisor.exporter.labels import Labels
from hypervisor.exporter.samples import SampleSet
from hypervisor.metrics.snapshot import GuestView

PREFIX = "kubevirt_vmi_gpu_"


def add_guest(sheet: SampleSet, guest: GuestView) -> None:
    """Add a virtual machine and its GPUs."""
    who = [("namespace", guest.namespace), ("name", guest.name), ("node", guest.node)]
    labels = Labels(who)
    sheet.put("guest_up", labels, int(guest.is_up))
    sheet.put("guest_scrape_duration_seconds", labels, guest.duration_s)
    sheet.put("guest_last_success_timestamp_seconds", labels, guest.last_success_at_s)
    sheet.put("guest_gpu_status", labels, guest.agent_status)
    sheet.put_each("guest_samples_dropped_total", labels, "reason", guest.dropped)
    sheet.put_each("guest_scrape_failures_total", labels, "reason", guest.failures)
    for gpu in guest.gpus:
        card = [("gpu_index", str(gpu.index)), ("gpu_uuid", gpu.uuid), ("gpu_name", gpu.name)]
        of_gpu = Labels([*who, *card])
        for name, value in gpu.values.items():
            sheet.put(PREFIX + name, of_gpu, value)
