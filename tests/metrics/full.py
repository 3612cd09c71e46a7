# SPDX-License-Identifier: Apache-2.0
"""A made-up node where everything that can be known is known."""

from __future__ import annotations

from hypervisor.metrics.clients import ClientAggregator
from hypervisor.metrics.gpus import GpuObservation, Schedulers, gpu_view
from hypervisor.metrics.observations import ProcessObservation, TenantObservation, UsageCounters
from hypervisor.metrics.snapshot import (
    ComponentStatus,
    GangMembership,
    Identity,
    KubeView,
    PluginView,
    SchedulerView,
    SlicesView,
    Snapshot,
)
from hypervisor.model import Gpu, GpuSample, GpuUuid, TenantName
from hypervisor.nvml.readings import readings_of
from hypervisor.scheduler.gang_statistics import GangStats
from hypervisor.scheduler.statistics import SchedulerStats
from hypervisor.scheduler.types import MS, Decision, Grant, SchedParams, TenantUsage
from tests.metrics import guests, partitioned

GIB, MIB = 1 << 30, 1 << 20
SECOND_NS = 1_000_000_000
GPU = Gpu(GpuUuid("GPU-00000000-0000-0000-0000-000000000001"), 0, 80 * GIB, "NVIDIA H100 80GB HBM3")
OTHER_GPU = Gpu(GpuUuid("GPU-00000000-0000-0000-0000-000000000002"), 1, 80 * GIB, "NVIDIA H100 80GB HBM3")
A, B = TenantName("pod-6f1"), TenantName("batch")
ROW = {
    "memory_bytes": 80 * GIB,
    "memory_used_bytes": 6 * GIB,
    "memory_free_bytes": 74 * GIB,
    "utilisation_percent": 87,
    "memory_utilisation_percent": 31,
    "pids": [[11, GIB], [12, 3 * GIB], [99, GIB]],
    "power_mw": 412_345,
    "energy_mj": 123_456_789,
    "temperature_c": 61,
    "clocks_mhz": [1980, 1980, 2619, 1545],
    "encoder_percent": 12,
    "decoder_percent": 3,
    "ecc_errors": [4, 0],
    "throttle": 0x4,
    "driver_version": "580.159.04",
}


def sample(gpu: Gpu = GPU, **changed: object) -> GpuSample:
    readings = readings_of({**ROW, **changed})
    return GpuSample(gpu, 6 * GIB, 87, ((11, GIB), (12, 3 * GIB), (99, GIB)), readings=readings)


def process(
    pid: int, *, tracked: int, nvml: int | None, spent_ns: int = 0, name: str = "python"
) -> ProcessObservation:
    return ProcessObservation(f"w-{pid}", pid, 7, name, tracked, spent_ns, {"kernel": 10, "graph": 2}, nvml)


def look(
    who: Identity, *, spent_ns: int, throttled_ns: int = 0, gpu: Gpu = GPU, **changed: object
) -> TenantObservation:
    values: dict[str, object] = {
        "terms": SchedParams(limit_percent=50, request_percent=20, weight=100),
        "memory_quota_bytes": 4 * GIB,
        "source": "env",
        "state": "enforced",
        "counters": UsageCounters(1, 2 * GIB, spent_ns, throttled_ns, 3, 1),
        "waiting": 1,
        "granted_ns": spent_ns,
    }
    return TenantObservation(who, gpu, **{**values, **changed})  # type: ignore[arg-type]


POD = Identity(tenant=A, namespace="research", pod="train-0", container="main", user="root", command="python")
PLAIN = Identity(tenant=B, unit="batch.service", user="alice", command="python")


def looks(spent_ns: int, throttled_ns: int) -> list[TenantObservation]:
    return [
        look(
            POD,
            spent_ns=spent_ns,
            throttled_ns=throttled_ns,
            processes=[process(11, tracked=100 * MIB, nvml=GIB, spent_ns=spent_ns)],
            source="annotation",
            gang=GangMembership("research/train", "named", 5),
        ),
        look(
            PLAIN,
            spent_ns=2 * spent_ns,
            throttled_ns=throttled_ns,
            processes=[process(12, tracked=200 * MIB, nvml=3 * GIB, spent_ns=2 * spent_ns)],
        ),
    ]


def turns() -> SchedulerStats:
    """Two turns, one used up, and one wait."""
    watched = SchedulerStats(10 * MS)
    terms = {A: SchedParams(), B: SchedParams()}
    steps = (
        (0, A, 0, 0, 1),
        (12 * MS, B, 12 * MS, 0, 0),
        (16 * MS, None, 12 * MS, 4 * MS, 0),
    )
    for now_ns, turn, spent_a, spent_b, waiting in steps:
        seen = {A: TenantUsage(spent_a), B: TenantUsage(spent_b, 0, waiting)}
        grants = {A: Grant(99 * MS, 0, is_shared=True), B: Grant(4 * MS * (turn is B), 0, is_shared=True)}
        watched.record(now_ns, seen, terms, Decision(grants, turn, now_ns))
    return watched


def gang_turns() -> GangStats:
    """One turn of a gang, used up."""
    watched = GangStats()
    watched.record_turn(101 * MS, "quantum")
    watched.record_drain(2 * MS)
    return watched


def snapshot() -> Snapshot:
    """Return the node after two looks, a second apart."""
    clients, schedulers = ClientAggregator(ttl_ns=300 * SECOND_NS), Schedulers()
    clients.step(looks(SECOND_NS, 0), now_ns=0, elapsed_ns=0, energy={})
    now = looks(SECOND_NS + 300 * MS, 400 * MS)
    views = clients.step(now, now_ns=SECOND_NS, elapsed_ns=SECOND_NS, energy={GPU.uuid: 400.0})
    cards = [
        GpuObservation(
            sample(), is_fresh=True, is_listed=True, xids={31: 2, 79: 1}, last_xid_at_s=1_700_000_000.25
        ),
        GpuObservation(sample(OTHER_GPU), is_fresh=True, is_listed=False),
    ]
    scheduler = schedulers.view(
        cards[0],
        now,
        clients.windows,
        clients.entitled,
        overcommit_percent=100,
        tally=turns().counters(),
    )
    return Snapshot(
        gpus=tuple(gpu_view(card, now, {11, 12}) for card in cards),
        clients=views,
        processes=clients.processes(now, views),
        schedulers=(scheduler, SchedulerView(OTHER_GPU.uuid, 1, {"scheduler_running_clients": 0})),
        gang_turns=gang_turns().counters(),
        vgpu_hosts=(partitioned.HOST,),
        mig_gpus=(partitioned.CARD,),
        guests=(guests.UP, guests.DOWN),
        components=(
            ComponentStatus(
                "nvml", is_up=True, last_success_at_s=1_700_000_000.5, duration_s=0.002, errors={"15": 1}
            ),
            ComponentStatus("arbitration", is_up=False),
        ),
        kubernetes=KubeView(
            is_up=True,
            restarts=2,
            pods=12,
            invalid=(("research", "train-1"),),
            events={"sent": 3, "failed": 0, "dropped": 0},
        ),
        plugin=PluginView(
            registrations=2,
            allocations={"granted": 5, "refused": 1},
            cards=(
                SlicesView(GPU.uuid, 0, {"offered": 10, "withheld": 0, "allotted": 7}),
                SlicesView(OTHER_GPU.uuid, 1, {"offered": 0, "withheld": 10, "allotted": 3}, returns=1),
            ),
            is_told=True,
        ),
        values={
            "up": 1,
            "nvml_up": 1,
            "gpus_failed": 0,
            "workers": 2,
            "tenants": 2,
            "longpoll_waiting": 2,
            "guest_collector_active": 1,
        },
        messages={("register", "received"): 2, ("accepted", "sent"): 2},
        counts={
            "guest_source_up": {"kubevirt": 1},
            "guest_targets": {"kubevirt": 2},
            "scheduler_client_disconnect_total": {"exited": 5},
            "registrations_total": {"accepted": 7, "refused": 1},
            "shm_rejected_total": {"owner": 1},
        },
        build={"version": "0.1.0", "python_version": "3.11.7"},
    )
