# SPDX-License-Identifier: Apache-2.0
"""Simulates the probe's rows of a node's cards, with values that go up and down. Pure."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, replace
from typing import Any

from hypervisor.model import Gpu, GpuSample, GpuUuid, MigLocation
from hypervisor.nvml.partitions import mig_gpu_of, vgpu_host_of
from hypervisor.nvml.readings import readings_of
from hypervisor.simulator.load import Wave, wave

MIB, GIB = 1 << 20, 1 << 30
DRIVER = "580.159.04"
MIG_LAYOUT = ((0, "1g.10gb", 10), (1, "1g.10gb", 10), (2, "2g.20gb", 20), (4, "3g.40gb", 40))
"""Number on the card, profile, GiB; with a gap, as in real layouts."""
VGPUS_A_CARD = 4
RESERVED = 551 * MIB


@dataclass(frozen=True, slots=True)
class Vm:
    """A virtual machine with a vGPU."""

    vgpu_id: int
    uuid: str
    vm_id: str
    activity: Wave
    memory: Wave
    license: int
    driver: str


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """A card; `parts` are its MIG devices, or the card itself."""

    gpu: Gpu
    is_parted: bool
    parts: tuple[Gpu, ...]
    vms: tuple[Vm, ...]
    policy: int
    heat: Wave


def made_uuid(dice: random.Random) -> str:
    return str(uuid.UUID(int=dice.getrandbits(128), version=4))


def made_card(dice: random.Random, index: int, *, has_vgpu: bool, has_mig: bool) -> SimulatedCard:
    """Return a card."""
    name = "NVIDIA L40S (simulated)" if has_vgpu else "NVIDIA H100 80GB HBM3 (simulated)"
    memory = (46068 if has_vgpu else 81559) * MIB
    gpu = Gpu(GpuUuid(f"GPU-{made_uuid(dice)}"), index, memory, name, index)
    parts = [
        Gpu(
            GpuUuid(f"MIG-{made_uuid(dice)}"),
            index,
            gigabytes * memory // 80,
            f"{name} MIG {profile}",
            mig=MigLocation(gpu.uuid, number, profile),
        )
        for number, profile, gigabytes in MIG_LAYOUT
    ]
    vms = [
        Vm(
            vgpu_id=3251634000 + index * 16 + number,
            uuid=made_uuid(dice),
            vm_id=made_uuid(dice),
            activity=wave(dice, 0, 1 / VGPUS_A_CARD) if dice.random() < 0.7 else Wave(0, 0, 60, 0),
            memory=wave(dice, 0.1, 0.95),
            license=5 if dice.random() < 0.9 else 3,
            driver=dice.choice(("570.124.06", "570.124.06", "553.62")),
        )
        for number in range(VGPUS_A_CARD)
    ]
    return SimulatedCard(
        gpu=gpu,
        is_parted=has_mig,
        parts=tuple(parts) if has_mig else (gpu,),
        vms=tuple(vms) if has_vgpu else (),
        policy=1 + index % 3,
        heat=wave(dice, 28, 40),
    )


@dataclass(frozen=True, slots=True)
class Use:
    """Activity of a card or MIG device."""

    busy: float
    pids: dict[int, int]
    """Bytes by host pid."""


def card_sample(
    card: SimulatedCard, use: Use, parts: dict[str, Use], *, now_s: float, joules: float
) -> GpuSample:
    """Return NVML's sample of a card; `parts` has the use of its MIG devices by UUID."""
    used = RESERVED + sum(use.pids.values()) + sum(int(vm_bytes(card, vm, now_s)) for vm in card.vms)
    busy = min(1.0, use.busy + sum(vm.activity.at(now_s) for vm in card.vms))
    watts = 75 + 560 * busy
    row: dict[str, Any] = {
        "memory_bytes": card.gpu.memory_bytes,
        "memory_used_bytes": used,
        "memory_free_bytes": card.gpu.memory_bytes - used,
        # In MIG mode NVML does not report it.
        "utilisation_percent": None if card.is_parted else round(busy * 100),
        "memory_utilisation_percent": None if card.is_parted else round(busy * 55),
        "pids": [[pid, size] for pid, size in use.pids.items()],
        "power_mw": round(watts * 1000),
        "energy_mj": round(joules * 1000),
        "temperature_c": round(card.heat.at(now_s) + 38 * busy),
        "clocks_mhz": [1980 if busy else 345, 1980 if busy else 345, 2619, 1545],
        "throttle": 0 if busy else 1,
        "driver_version": DRIVER,
    }
    name: Any = {"uuid": card.gpu.uuid, "index": card.gpu.index, "name": card.gpu.name}
    host = vgpu_host_of(vgpu_row(card, now_s) if card.vms else None, **name)
    mig = None if card.vms else mig_gpu_of(mig_row(card, parts), **name)
    return replace(sample_of(card.gpu, row), vgpu=host, mig=mig)


def part_sample(gpu: Gpu, use: Use) -> GpuSample:
    """Return NVML's sample of a MIG device."""
    used = sum(use.pids.values())
    pids = [[pid, size] for pid, size in use.pids.items()]
    return sample_of(gpu, {"memory_bytes": gpu.memory_bytes, "memory_used_bytes": used, "pids": pids})


def sample_of(gpu: Gpu, row: dict[str, Any]) -> GpuSample:
    return GpuSample(
        gpu, row["memory_used_bytes"], row.get("utilisation_percent"), (), readings=readings_of(row)
    )


def vm_bytes(card: SimulatedCard, vm: Vm, now_s: float) -> float:
    return vm.memory.at(now_s) * (card.gpu.memory_bytes - RESERVED) / (VGPUS_A_CARD + 1)


def vgpu_row(card: SimulatedCard, now_s: float) -> dict[str, Any]:
    return {
        "host_mode": 1,
        "arr_supported": card.policy != 1,
        "policy": card.policy,
        "arr": (0, 0, 2, 1)[card.policy],
        "timeslice_ns": None if card.policy == 1 else 2_083_333,
        "overruns": int(now_s) // 60 if card.policy == 2 else 0,
        "instances": [vm_row(card, vm, now_s) for vm in card.vms],
    }


def vm_row(card: SimulatedCard, vm: Vm, now_s: float) -> dict[str, Any]:
    busy = vm.activity.at(now_s) * 100
    return {
        "id": vm.vgpu_id,
        "uuid": vm.uuid,
        "vm_id": vm.vm_id,
        "type": "NVIDIA L40S-8Q",
        "memory_bytes": 8 * GIB,
        "memory_used_bytes": int(vm_bytes(card, vm, now_s)),
        "activity": {"sm": busy, "memory": busy * 0.6, "encoder": busy * 0.1, "decoder": 0},
        "active": busy > 0,
        "license": vm.license,
        "driver": vm.driver,
    }


def mig_row(card: SimulatedCard, parts: dict[str, Use]) -> dict[str, Any]:
    rows = []
    for gpu in card.parts:
        if gpu.mig is None:
            continue
        use = parts[gpu.uuid]
        rows.append(
            {
                "index": gpu.mig.index,
                "uuid": gpu.uuid,
                "profile": gpu.mig.profile,
                "gpu_instance": 7 + gpu.mig.index,
                "compute_instance": 0,
                "memory_bytes": gpu.memory_bytes,
                "memory_used_bytes": sum(use.pids.values()),
                "busy": use.busy * 100,
                "memory_busy": use.busy * 50,
            }
        )
    return {"enabled": card.is_parted, "instances": rows}
