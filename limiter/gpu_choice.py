# SPDX-License-Identifier: Apache-2.0
"""Checks the GPUs that `--gpu` names against those of the machine, before a program starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from limiter.cards import Card, NoCards, cards
from limiter.errors import UsageError

UUID = re.compile(r"(GPU|MIG)-[0-9a-f-]+", re.IGNORECASE)


def check(gpus: Sequence[str], variables: Mapping[str, str]) -> None:
    """Raise UsageError if one of the GPUs does not exist. `variables` is the program's environment.

    If NVML does not answer, only the form is checked: the program then fails by itself.
    """
    names = [name for gpu in gpus for name in gpu.split(",")]
    for name in names:
        if not name.isdecimal() and not UUID.fullmatch(name):
            raise UsageError(f"--gpu: {name!r} is neither a number nor a UUID{there(variables)}")
    if not names:
        return
    try:
        known = cards(variables)
    except NoCards:
        return
    for name in names:
        if not is_known(name, known):
            raise UsageError(f"--gpu: there is no GPU {name!r}; there {listed(known)}")


def is_known(name: str, known: Sequence[Card]) -> bool:
    """True if a name is a card's index or the beginning of its UUID. CUDA itself checks MIG devices."""
    if name.isdecimal():
        return int(name) in {card.index for card in known}
    return name.upper().startswith("MIG-") or any(
        card.uuid.lower().startswith(name.lower()) for card in known
    )


def there(variables: Mapping[str, str]) -> str:
    try:
        return f"; there {listed(cards(variables))}"
    except NoCards:
        return ""


def listed(known: Sequence[Card]) -> str:
    """Return "is 0 (GPU-…)", "are 0 (GPU-…), 1 (GPU-…)" or "is none"."""
    names = ", ".join(f"{card.index} ({card.uuid})" for card in known) or "none"
    return f"{'are' if len(known) > 1 else 'is'} {names}"
