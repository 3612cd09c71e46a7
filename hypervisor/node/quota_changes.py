# SPDX-License-Identifier: Apache-2.0
"""Operators' changes of quotas: applies changed fields, and refuses amounts that no GPU has. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from hypervisor.errors import Refused
from hypervisor.model import NO_QUOTA, Gpu
from limiter.errors import QuotaError
from limiter.quota import Quota, Rule, read
from limiter.units import show_bytes

FIELDS = {
    "memory": "memory",
    "compute": "compute",
    "request": "request_percent",
    "weight": "weight",
    "priority": "priority",
    "memory_wait": "memory_wait_s",
    "gang": "gang",
}
"""Fields of a quota by their names in calls, and their names in `Quota`."""


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """Some fields of a quota; the other fields stay."""

    said: Quota
    cleared: Collection[str] = ()
    """Names of removed fields: they get their defaults."""


def apply_change(base: Quota, change: QuotaChange) -> Quota:
    """Return a changed quota. Raises Refused if its fields then contradict each other."""
    said = {
        name: value
        for name in FIELDS.values()
        if (value := getattr(change.said, name)) != getattr(NO_QUOTA, name)
    }
    cleared = {FIELDS[name]: getattr(NO_QUOTA, FIELDS[name]) for name in change.cleared}
    made = replace(base, tenant=None, **{**said, **cleared})
    names = {f"GPULIMIT_{name.upper()}": name for name in FIELDS}
    try:
        read(made.environ(), flags=names)
    except QuotaError as error:
        raise Refused(422, str(error)) from error
    return made


def check_amounts(quota: Quota, gpus: Collection[Gpu]) -> None:
    """Raise Refused if a rule names no GPU of the node, or more memory than its GPUs have."""
    if not gpus:
        return
    for part, rules in (("memory", quota.memory), ("compute", quota.compute)):
        for rule in rules:
            named = [gpu for gpu in gpus if applies_to(rule, gpu)]
            if not named:
                raise Refused(422, f"{part}: no GPU {rule.device!a} on this node, which has {sizes(gpus)}")
            largest = max(gpu.memory_bytes for gpu in named)
            if part == "memory" and not rule.is_share and rule.amount > largest:
                wanted = show_bytes(rule.amount)
                raise Refused(422, f"memory of {wanted} is more than there is: {sizes(named)}")


def applies_to(rule: Rule, gpu: Gpu) -> bool:
    """True if a rule names a GPU: by its index, the beginning of its UUID, or "*"."""
    if rule.device == "*":
        return True
    if rule.device.isdecimal():
        return gpu.quota_index == int(rule.device)
    return gpu.uuid.lower().startswith(rule.device.lower())


def sizes(gpus: Iterable[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.label} with {show_bytes(gpu.memory_bytes)}" for gpu in gpus)
