# SPDX-License-Identifier: Apache-2.0
"""Slices of cards: their device names, the preferred choice among them, and the quota that they stand for.

A card is offered as `per_gpu` devices named "<UUID>::<number>". Only the number of a container's slices on a
card matters, not which ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from hypervisor.model import GpuUuid
from limiter.quota import Quota, Rule

SEPARATOR = "::"
THOUSANDTHS = 100_000
"""Thousandths of a percent in a whole card."""
Placement = Literal["pack", "spread"]


def names(gpu: GpuUuid, per_gpu: int) -> list[str]:
    """Return the device names of a card."""
    return [f"{gpu}{SEPARATOR}{number}" for number in range(per_gpu)]


def gpu_of(device: str) -> GpuUuid:
    """Return the card of a device. Raises ValueError if the name has another format."""
    uuid, separator, number = device.rpartition(SEPARATOR)
    if not (uuid and separator and number.isascii() and number.isdecimal()):
        raise ValueError(f"{device[:80]!a} is not a slice of a card")
    return GpuUuid(uuid)


def number_of(device: str) -> int:
    """Return the number of a device on its card."""
    return int(device.rpartition(SEPARATOR)[2])


def count(devices: Iterable[str]) -> Counter[GpuUuid]:
    """Return the number of slices of each card among the devices. Raises ValueError.

    A device that is listed twice counts once: a container may reuse the devices of an init container.
    """
    return Counter(gpu_of(device) for device in set(devices))


def preferred(
    available: Sequence[str], must_include: Sequence[str], size: int, *, placement: Placement
) -> list[str]:
    """Return `size` of the available devices, on one card if one has enough left.

    `pack` takes the card with the least room, so that other cards stay whole; `spread` takes the card with
    the most. If no card has enough, as few cards as possible are used. Raises ValueError if a device is no
    slice, or if there are too few.
    """
    chosen = list(dict.fromkeys(must_include))
    free: dict[GpuUuid, list[str]] = {}
    for device in dict.fromkeys(available):
        if device not in chosen:
            free.setdefault(gpu_of(device), []).append(device)
    started = set(count(chosen))
    while len(chosen) < size and free:
        card = next_card(free, started, size - len(chosen), placement)
        mine = sorted(free.pop(card), key=number_of)
        chosen += mine[: size - len(chosen)]
    if len(chosen) < size:
        raise ValueError(f"{size} slices wanted and {len(chosen)} there")
    return chosen[:size] if size >= len(set(must_include)) else chosen


def next_card(
    free: Mapping[GpuUuid, Sequence[str]], started: set[GpuUuid], wanted: int, placement: Placement
) -> GpuUuid:
    """Return the card to take from next: preferably one already in use, then one with enough slices."""
    room = {gpu: len(devices) for gpu, devices in free.items()}
    among = [gpu for gpu in room if gpu in started] or list(room)
    enough = [gpu for gpu in among if room[gpu] >= wanted]
    if not enough:
        return min(among, key=lambda gpu: (-room[gpu], gpu))
    least_first = 1 if placement == "pack" else -1
    return min(enough, key=lambda gpu: (least_first * room[gpu], gpu))


def quota_of(devices: Iterable[str], per_gpu: int) -> Quota:
    """Return the quota that slices stand for: that fraction of each card's memory, and as request of its
    time.

    A card without a slice contributes nothing. A request is one number: over several cards it is that of the
    card with the fewest slices. Raises ValueError if a device is no slice.
    """
    counts = count(devices)
    if not counts:
        raise ValueError("no slices")
    rules = tuple(
        Rule(gpu, min(THOUSANDTHS, THOUSANDTHS * slices // per_gpu), is_share=True)
        for gpu, slices in sorted(counts.items())
    )
    return Quota(memory=rules, request_percent=max(1, min(100, 100 * min(counts.values()) // per_gpu)))
