# SPDX-License-Identifier: Apache-2.0
"""A made-up vGPU host and a made-up card in MIG mode, of which everything is known; and reading them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.parser import text_string_to_metric_families

from hypervisor.exporter.exposition import render
from hypervisor.exporter.families import families_of
from hypervisor.metrics.snapshot import Snapshot
from hypervisor.scraper import parser as exposition
from limiter.mig import MigGpu, MigInstance
from limiter.partition_metrics import PartitionReader, Sample
from limiter.vgpu import VgpuHost, VgpuInstance

VGPU = VgpuInstance(
    vgpu_id=3251634213,
    uuid="d471c7f2-e4ed-11ee-8a3c-0242ac120002",
    type_name="NVIDIA A40-8Q",
    vm_id="0a1b2c3d-1111-2222-3333-444455556666",
    utilization_ratio=0.42,
    memory_utilization_ratio=0.45,
    encoder_utilization_ratio=0.07,
    decoder_utilization_ratio=0.09,
    memory_used_bytes=6 << 30,
    memory_total_bytes=8 << 30,
    is_active=True,
    license_state="licensed",
    guest_driver="570.124.06",
)
HOST = VgpuHost(
    gpu_uuid="GPU-aaaaaaaa-0000-0000-0000-000000000003",
    gpu_index=3,
    gpu_name="NVIDIA A40",
    instance="node-7",
    host="node-7",
    host_mode="sriov",
    arr_mode=2,
    is_arr_supported=True,
    policy=1,
    timeslice_seconds=0.002083333,
    overruns=17,
    instances=(VGPU, VgpuInstance(vgpu_id=3251634299, is_active=False)),
)
MIG = MigInstance(
    index=2,
    uuid="MIG-4c6b71e0-90c3-5bd1-a6a3-3ac2a08c4d60",
    profile="2g.20gb",
    gpu_instance_id=5,
    compute_instance_id=0,
    memory_used_bytes=12 << 30,
    memory_total_bytes=20 << 30,
    utilization_ratio=0.625,
    memory_utilization_ratio=0.125,
    memory_reserved_bytes=16 << 30,
    compute_requested_ratio=0.75,
)
CARD = MigGpu(
    gpu_uuid="GPU-bbbbbbbb-0000-0000-0000-000000000001",
    gpu_index=1,
    gpu_name="NVIDIA H100 80GB HBM3",
    instance="node-7",
    host="node-7",
    is_enabled=True,
    instances=(MIG, MigInstance(index=6)),
)


def page(*cards: VgpuHost | MigGpu) -> str:
    """Return the page of a node with these cards and nothing else."""
    hosts = tuple(card for card in cards if isinstance(card, VgpuHost))
    migs = tuple(card for card in cards if isinstance(card, MigGpu))
    return render(families_of(Snapshot(vgpu_hosts=hosts, mig_gpus=migs), has_debug_labels=False), "text")


def samples(text: str) -> Iterator[Sample]:
    """Yield a page's samples by prometheus_client's parser."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def hardened_samples(text: str) -> Iterator[Sample]:
    """Yield them by the parser for nodes that are not to be trusted."""
    parsed = exposition.parse(text.encode())
    assert not parsed.dropped and not parsed.repaired
    for name, series in parsed.samples.items():
        for labels, value in series.items():
            yield name, dict(labels), value


def read(text: str, parser: Callable[[str], Iterator[Sample]] = samples) -> PartitionReader:
    reader = PartitionReader()
    reader.take(parser(text))
    return reader
