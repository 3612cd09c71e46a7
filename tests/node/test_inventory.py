# SPDX-License-Identifier: Apache-2.0
"""Which GPUs have a place in policies, and what becomes of it when MIG devices come and go."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from hypervisor.model import Gpu, GpuSample, GpuUuid, MigLocation, device_quota
from hypervisor.node.events import EventLog
from hypervisor.node.inventory import Inventory
from hypervisor.shm.segments import MAX_DEVICES, uuid_bytes
from limiter import quota

GIB = 1 << 30


def card(number: int) -> GpuSample:
    return sample(Gpu(GpuUuid(f"GPU-{uuid.UUID(int=number)}"), number, 80 * GIB))


def device(number: int, *, of: GpuSample, index: int = 0) -> GpuSample:
    name = GpuUuid(f"MIG-{uuid.UUID(int=1000 + number)}")
    return sample(Gpu(name, of.gpu.index, 10 * GIB, mig=MigLocation(of.gpu.uuid, index, "1g.10gb")))


def sample(gpu: Gpu, **apply_change: Any) -> GpuSample:
    return GpuSample(gpu, 0, None, (), **apply_change)


@pytest.fixture
def events() -> EventLog:
    return EventLog()


@pytest.fixture
def inventory(events: EventLog) -> Inventory:
    return Inventory(None, events)  # type: ignore[arg-type]


def kinds(events: EventLog) -> dict[str, int]:
    return {kind: count for kind, count in events.counts.items() if count}


def test_cards_and_mig_devices_have_a_place_each_that_stays(inventory: Inventory) -> None:
    one = card(0)
    first, second = device(0, of=one), device(1, of=one)
    assert inventory.update((one, first))
    assert not inventory.update((one, first))
    assert inventory.update((one, second))
    assert [gpu.uuid for gpu in inventory.gpus] == [one.gpu.uuid, first.gpu.uuid, second.gpu.uuid]
    assert [gpu.uuid for gpu in inventory.present] == [one.gpu.uuid, second.gpu.uuid]
    inventory.update(())
    assert [gpu.uuid for gpu in inventory.present] == [one.gpu.uuid], "a lost card is still a card"


def test_a_mig_device_that_is_gone_makes_room_when_there_is_none(
    inventory: Inventory, events: EventLog
) -> None:
    one = card(0)
    here = [device(n, of=one) for n in range(MAX_DEVICES - 1)]
    inventory.update((one, *here))
    assert len(inventory.gpus) == MAX_DEVICES
    late = device(500, of=one)
    in_use = here[0].gpu.uuid
    assert inventory.update((one, *here[2:], late), in_use={in_use})
    entries = [gpu.uuid for gpu in inventory.gpus]
    assert len(entries) == MAX_DEVICES and entries[0] == one.gpu.uuid
    assert entries[1] == in_use, "somebody is on it"
    assert entries[2] == late.gpu.uuid, "the place of the one that is gone"
    assert here[1].gpu.uuid not in inventory.samples and late.gpu.uuid in inventory.samples
    assert "gpu_left_out" not in kinds(events)


def test_what_has_no_place_is_left_out_and_told_once(inventory: Inventory, events: EventLog) -> None:
    """Nobody gets anything of it: a policy without an entry for a GPU gives nothing."""
    one = card(0)
    samples = (one, *(device(n, of=one) for n in range(MAX_DEVICES + 3)))
    for _ in range(3):
        inventory.update(samples)
    assert len(inventory.gpus) == MAX_DEVICES
    assert len(inventory.samples) == MAX_DEVICES
    assert kinds(events)["gpu_left_out"] == 4


@pytest.mark.parametrize("name", ["MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/7/0", "GPU-zzz", "", "GPU-1"])
def test_a_uuid_that_cuda_does_not_give_is_left_out(
    inventory: Inventory, events: EventLog, name: str
) -> None:
    good = card(0)
    inventory.update((sample(Gpu(GpuUuid(name), 1, GIB)), good))
    assert [gpu.uuid for gpu in inventory.gpus] == [good.gpu.uuid]
    assert kinds(events)["gpu_left_out"] == 1


def test_why_mig_devices_cannot_be_read_is_told_when_it_changes(
    inventory: Inventory, events: EventLog
) -> None:
    for trouble in ("", "refused", "refused", ""):
        inventory.update((sample(card(0).gpu, mig_error=trouble),))
    assert kinds(events) == {"gpu_found": 1, "mig_failed": 1, "mig_recovered": 1}


def test_a_mig_device_is_named_by_its_uuid_and_never_by_its_cards_number() -> None:
    one = card(2)
    part = device(0, of=one, index=1).gpu
    by_number = quota.read({"GPULIMIT_MEMORY": "2=4GiB,*=1GiB", "GPULIMIT_COMPUTE": "2=50,*=10"})
    by_name = quota.read({"GPULIMIT_MEMORY": f"{part.uuid}=4GiB"})
    assert device_quota(by_number, one.gpu).memory_bytes == 4 * GIB
    assert device_quota(by_number, part).memory_bytes == GIB
    assert device_quota(by_number, part).compute_percent == 10
    assert device_quota(by_name, part).memory_bytes == 4 * GIB
    assert device_quota(by_name, one.gpu).memory_bytes == 0
    assert device_quota(quota.read({"GPULIMIT_MEMORY": "50%"}), part).memory_bytes == 5 * GIB
    assert (one.gpu.label, part.label) == ("2", "2:1")
    assert uuid_bytes(part.uuid) == uuid.UUID(int=1000).bytes
