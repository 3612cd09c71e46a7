# SPDX-License-Identifier: Apache-2.0
"""Specification of a simulated node: its cards, their parts, and its faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Fault = Literal[
    "lost-gpu",
    "xid",
    "hot",
    "nvml-down",
    "stranger",
    "over-quota",
    "slow",
    "down",
    "flapping",
    "garbage",
    "huge",
]
FAULTS: dict[Fault, str] = {
    "lost-gpu": "its first card has fallen off the bus",
    "xid": "its first card reports an uncorrectable error (Xid 48) now and then",
    "hot": "its first card is at 93 degrees and held down",
    "nvml-down": "NVML does not answer: cards are not known any more, tenants are",
    "stranger": "a process under no quota is on its first card",
    "over-quota": "its first tenant holds more than its quota",
    "slow": "its page takes three seconds",
    "down": "it closes every connection",
    "flapping": "it is down for ten seconds out of thirty",
    "garbage": "its page is noise",
    "huge": "its page does not end",
}
assert set(FAULTS) == set(get_args(Fault))
MAX_CARDS = 16
CARDS, TENANTS = 8, 3


@dataclass(frozen=True, slots=True)
class Plan:
    """One node."""

    name: str
    cards: int = CARDS
    tenants: int = TENANTS
    """Number of tenants on each card or MIG device."""
    has_vgpu: bool = False
    """True if the cards are shared among virtual machines."""
    has_mig: bool = False
    """True if every second card is in MIG mode."""
    faults: frozenset[Fault] = frozenset()


def mixed(name: str, place: int, plan: Plan) -> Plan:
    """Return one of many different nodes: most are plain, some have MIG or vGPUs, a few have faults."""
    troubles: dict[int, Fault] = {
        3: "hot",
        7: "lost-gpu",
        11: "stranger",
        13: "flapping",
        17: "slow",
        19: "down",
    }
    trouble = troubles.get(place % 20)
    return Plan(
        name=name,
        cards=(8, 8, 4, 8, 2)[place % 5] if plan.cards == CARDS else plan.cards,
        tenants=1 + (place * 7 + 2) % 4,
        has_vgpu=plan.has_vgpu or place % 6 == 4,
        has_mig=plan.has_mig or place % 6 == 2,
        faults=plan.faults | ({trouble} if trouble else set()),
    )
