# SPDX-License-Identifier: Apache-2.0
"""Slices of cards, as the kubelet counts them: names, which to take together, and the quota that they mean.

A card is offered as `per_gpu` devices named "<UUID>::<number>". Which slices of a card a container has means
nothing; how many does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from hypervisor.model import GpuUuid
from limiter.quota import Quota, Rule

SEPARATOR = "::"
THOUSANDTHS = 100_000
"""Of a percent, in a whole card."""
Placement = Literal["pack", "spread"]


def names(gpu: GpuUuid, per_gpu: int) -> list[str]:
    """Return the devices that a card is offered as."""
    return [f"{gpu}{SEPARATOR}{number}" for number in range(per_gpu)]


def gpu_of(device: str) -> GpuUuid:
    """Return the card of a device. Raises ValueError for what is no name of ours."""
    uuid, separator, number = device.rpartition(SEPARATOR)
    if not (uuid and separator and number.isascii() and number.isdecimal()):
        raise ValueError(f"{device[:80]!a} is not a slice of a card")
    return GpuUuid(uuid)


def number_of(device: str) -> int:
    """Return the number of a device on its card."""
    return int(device.rpartition(SEPARATOR)[2])


def count(devices: Iterable[str]) -> Counter[GpuUuid]:
    """Return how many slices of each card are among the devices; one that comes twice is one: containers are
    given those of init containers before them. Raises ValueError.
    """
    return Counter(gpu_of(device) for device in set(devices))


def preferred(
    available: Sequence[str], must_include: Sequence[str], size: int, *, placement: Placement
) -> list[str]:
    """Return `size` of the available devices that go well together: on one card if one has enough left.

    `pack` takes the card with the least room, so that others stay whole; `spread` the one with the most.
    Where no card has enough, as few cards as possible are taken. Raises ValueError for devices that are no
    slices, and if there are not enough.
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
    """Return the card to take from next: one that is taken from anyway, then one that has enough."""
    room = {gpu: len(devices) for gpu, devices in free.items()}
    among = [gpu for gpu in room if gpu in started] or list(room)
    enough = [gpu for gpu in among if room[gpu] >= wanted]
    if not enough:
        return min(among, key=lambda gpu: (-room[gpu], gpu))
    least_first = 1 if placement == "pack" else -1
    return min(enough, key=lambda gpu: (least_first * room[gpu], gpu))


def quota_of(devices: Iterable[str], per_gpu: int) -> Quota:
    """Return what some slices mean: that part of each card's memory and, at least, of its time. Raises
    ValueError.

    Cards without a slice give nothing. Over several cards the request, which is one number, is that of the
    card with the fewest slices.
    """
    counts = count(devices)
    if not counts:
        raise ValueError("no slices")
    rules = tuple(
        Rule(gpu, min(THOUSANDTHS, THOUSANDTHS * slices // per_gpu), is_share=True)
        for gpu, slices in sorted(counts.items())
    )
    return Quota(memory=rules, request_percent=max(1, min(100, 100 * min(counts.values()) // per_gpu)))
