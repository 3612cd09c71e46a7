# SPDX-License-Identifier: Apache-2.0
"""Made-up nodes where everything that can be shown is there."""

from __future__ import annotations

from dataclasses import replace

from hypervisor.top.history import History
from hypervisor.top.model import (
    CardView,
    Mig,
    NodeView,
    ProcessView,
    TenantView,
    Vgpu,
    VgpuHostView,
    totals_of,
)

GIB = 1 << 30
H100 = "NVIDIA H100 80GB HBM3"


def tenant(name: str, **changed: object) -> TenantView:
    made = TenantView(
        key=name,
        name=name,
        now="runs",
        enforcement="enforced",
        due=0.3,
        got=0.298,
        limit_percent=100,
        request_percent=30,
        weight=100,
        priority="normal",
        memory_bytes=12 * GIB,
        quota_bytes=20 * GIB,
        is_throttled=False,
        waited_s=75.0,
        gpu_s=3600.0,
        source="config",
        user="alice",
        command="python",
        processes=1,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


TEAM_A = tenant("research/train-0", is_throttled=True, source="pod", request_percent=30)
BATCH = tenant(
    "batch", due=0.6, got=0.451, limit_percent=60, memory_bytes=19.5 * GIB, denied=3, weight=200, waited_s=4.0
)
IDLE = tenant(
    "notebook",
    now="idle",
    due=0.1,
    got=0.0,
    memory_bytes=0.5 * GIB,
    quota_bytes=None,
    priority="low",
    waited_s=0,
)
STRANGER = tenant("rogue", enforcement="off", due=None, got=0.02, quota_bytes=4 * GIB, source="env")
ON_MIG = tenant("ml/slice-7", due=1.0, got=0.5, memory_bytes=9.4 * GIB, quota_bytes=None, request_percent=0)
CARD = CardView(
    uuid="GPU-5b4a4dd5-3e06-4b5d-8b0b-bf5f1bb1a001",
    index=0,
    name=H100,
    driver="580.159.04",
    utilization=0.76,
    memory_busy=0.31,
    memory_bytes=34.2 * GIB,
    total_bytes=79.6 * GIB,
    reserved_bytes=44 * GIB,
    requested=0.9,
    power_w=412.3,
    energy_j=1e6,
    temperature_c=61,
    clock_hz=1.98e9,
    held_down_by=("sw_power_cap",),
    processes=4,
    unregistered=1,
    tenants=(TEAM_A, BATCH, IDLE, STRANGER),
)
QUIET = CardView(
    uuid="GPU-5b4a4dd5-3e06-4b5d-8b0b-bf5f1bb1a002",
    index=1,
    name=H100,
    utilization=0.0,
    memory_bytes=0.5 * GIB,
    total_bytes=79.6 * GIB,
    power_w=71,
    temperature_c=34,
    clock_hz=3.45e8,
    processes=0,
    unregistered=0,
)
LOST = CardView("GPU-lost", 2, H100, total_bytes=QUIET.total_bytes, is_lost=True)
VGPU_CARD = CardView(
    uuid="GPU-5b4a4dd5-3e06-4b5d-8b0b-bf5f1bb1a004",
    index=3,
    name="NVIDIA A16",
    utilization=0.4,
    memory_bytes=9 * GIB,
    total_bytes=16 * GIB,
    power_w=44,
    temperature_c=52,
    vgpu_host=VgpuHostView("SR-IOV", "fixed share", "on", 0.002),
    vgpus=(
        Vgpu(
            "3251634213",
            "NVIDIA A16-4Q",
            "c2f0b6de-1b0e-4b27-b3f5-9a1f2f0f7a10",
            0.34,
            3.1 * GIB,
            4 * GIB,
            True,
            "licensed",
        ),
        Vgpu("3251634214", "NVIDIA A16-4Q", "vm-2", None, 0.2 * GIB, 4 * GIB, False, "unlicensed"),
    ),
)
MIG_CARD = CardView(
    uuid="GPU-5b4a4dd5-3e06-4b5d-8b0b-bf5f1bb1a005",
    index=4,
    name="NVIDIA A100-SXM4-80GB",
    memory_bytes=12 * GIB,
    total_bytes=80 * GIB,
    power_w=120,
    temperature_c=44,
    mig_mode=True,
    migs=(
        Mig("MIG-1", "3g.40gb", "1", "0", 0.5, 9.5 * GIB, 39.5 * GIB, (ON_MIG,)),
        Mig("MIG-2", "1g.10gb", "7", "0", None, 1.2 * GIB, 9.8 * GIB),
    ),
)
PROCESSES = (
    ProcessView(
        4121, CARD.uuid, 0, "research/train-0", "alice", "python train.py --epochs 90", 12 * GIB, 0.298
    ),
    ProcessView(5233, CARD.uuid, 0, "batch", "bob", "python -m serve --model llama", 19.5 * GIB, 0.451),
    ProcessView(6001, CARD.uuid, 0, "notebook", "carol", "/usr/bin/python3 -m ipykernel", 0.5 * GIB, 0.0),
    ProcessView(7777, CARD.uuid, 0, "", "mallory", "./miner", 2.2 * GIB, None),
)
NODE = NodeView(
    host="gpu-a1", health="up", at_s=100.0, cards=(CARD, QUIET), processes=PROCESSES, may_change=True
)
FULL_NODE = replace(NODE, cards=(CARD, QUIET, LOST, VGPU_CARD, MIG_CARD), health="partial")


def history(*nodes: NodeView, steps: int = 60) -> History:
    """Return graphs that look like work: a wave, the same every time."""
    made = History()
    for step in range(steps):
        wave = abs((step * 7) % 40 - 20) / 20
        waved = tuple(
            replace(
                n,
                cards=tuple(
                    replace(
                        c,
                        utilization=None if c.utilization is None else c.utilization * wave,
                        memory_bytes=None
                        if c.memory_bytes is None
                        else c.memory_bytes * (0.5 + step / steps / 2),
                    )
                    for c in n.cards
                ),
            )
            for n in nodes
        )
        made.note(waved, totals_of(waved))
    return made
