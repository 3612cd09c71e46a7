# SPDX-License-Identifier: Apache-2.0
"""Converts vGPUs and MIG devices to samples. Pure. Cards without either have none.

Labels are made once for each instance. The tables in limiter.vgpu and limiter.mig map fields to metrics.
"""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.exporter.labels import Labels
from hypervisor.exporter.samples import SampleSet
from limiter import mig, vgpu
from limiter.mig import MigGpu
from limiter.vgpu import HOST_MODES, VgpuHost

Pairs = list[tuple[str, str]]


def card_labels(card: VgpuHost | MigGpu) -> Pairs:
    return [
        ("gpu_uuid", card.gpu_uuid),
        ("gpu_index", str(card.gpu_index)),
        ("gpu", card.gpu_name),
        ("instance", card.instance),
        ("host", card.host),
    ]


def instance_labels(instance: object, table: Mapping[str, str]) -> Pairs:
    values = ((label, getattr(instance, field)) for field, label in table.items())
    return [(label, "" if value is None else str(value)) for label, value in values]


def put_fields(sheet: SampleSet, labels: Labels, instance: object, table: Mapping[str, str]) -> None:
    """Add a sample for each known field."""
    for field, name in table.items():
        value = getattr(instance, field)
        sheet.put(name, labels, int(value) if isinstance(value, bool) else value)


def add_vgpu_host(sheet: SampleSet, host: VgpuHost) -> None:
    """Add a card of a vGPU host and its vGPUs."""
    card = card_labels(host)
    labels = Labels(card)
    sheet.put("vgpu_host_mode", labels.plus("host_mode", host.host_mode), HOST_MODES[host.host_mode])
    is_supported = {None: "", True: "true", False: "false"}[host.is_arr_supported]
    sheet.put("vgpu_scheduler_state", Labels([*card, ("arr_supported", is_supported)]), host.arr_mode)
    others = {f: name for f, name in vgpu.HOST_FAMILIES.items() if f != "arr_mode"}
    put_fields(sheet, labels, host, others)
    for instance in host.instances:
        pairs = [*card, *instance_labels(instance, vgpu.INSTANCE_LABELS)]
        own = Labels(pairs)
        put_fields(sheet, own, instance, vgpu.INSTANCE_FAMILIES)
        for field, (name, label) in vgpu.INSTANCE_INFOS.items():
            told = getattr(instance, field)
            sheet.put(name, Labels([*pairs, (label, told)]), 1 if told else None)


def add_mig_gpu(sheet: SampleSet, card: MigGpu) -> None:
    """Add a card that supports MIG, and its MIG devices."""
    pairs = card_labels(card)
    sheet.put("mig_mode", Labels(pairs), int(card.is_enabled))
    for instance in card.instances:
        labels = Labels([*pairs, *instance_labels(instance, mig.INSTANCE_LABELS)])
        sheet.put(mig.INFO, labels, 1)
        put_fields(sheet, labels, instance, mig.INSTANCE_FAMILIES)
