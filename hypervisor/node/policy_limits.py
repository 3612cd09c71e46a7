# SPDX-License-Identifier: Apache-2.0
"""Reads a tenant's quota back from the limits in its policy segment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypervisor.model import DeviceQuota, Gpu, device_quota
from limiter.quota import DEFAULT_WEIGHT, Quota, Rule, read
from limiter.units import PERCENT

MIN_PERCENT = 1
"""Limit on a GPU that a list of limits does not name."""

Limits = Mapping[Gpu, DeviceQuota]


def matches_limits(quota: Quota, limits: Limits) -> bool:
    """True if a quota gives each of these GPUs the limits that are in force there."""
    return all(is_same(device_quota(quota, gpu), there) for gpu, there in limits.items())


def is_same(one: DeviceQuota, there: DeviceQuota) -> bool:
    """True if two limits are the same; a quota of the card's whole memory is no quota.

    Earlier versions gave a tenant without a weight its request as the weight: that counts as the same quota.
    """
    weight = one.weight if there.weight == there.request_percent else there.weight
    return replace(one, is_memory_limited=False) == replace(there, is_memory_limited=False, weight=weight)


def quota_of(limits: Limits) -> Quota:
    """Return a quota that means these limits. Raises QuotaError if none does."""
    any_of = next(iter(limits.values()))
    memory = {gpu: one.memory_bytes for gpu, one in limits.items()}
    compute = {gpu: one.compute_percent for gpu, one in limits.items()}
    if len(set(compute.values())) > 1:  # a list gives 1 % to the GPUs that it does not name
        compute = {gpu: 0 if percent == MIN_PERCENT else percent for gpu, percent in compute.items()}
    is_limited = any(one.is_memory_limited for one in limits.values())
    quota = Quota(
        memory=rules(memory) if is_limited else (),
        compute=rules(compute) if min(compute.values()) < PERCENT else (),
        request_percent=any_of.request_percent or None,
        weight=None if any_of.weight == DEFAULT_WEIGHT else any_of.weight,
        priority=None if any_of.priority == "normal" else any_of.priority,
        memory_wait_s=any_of.memory_wait_ns // 1_000_000_000 or None,
    )
    return read(quota.environ())


def rules(amounts: Mapping[Gpu, int]) -> tuple[Rule, ...]:
    """Return one rule for all GPUs if their amounts are the same, else one for each.

    A GPU with amount 0 gets no rule: a list gives nothing to the GPUs that it does not name.
    """
    if len(set(amounts.values())) == 1:
        return (Rule("*", next(iter(amounts.values()))),)
    return tuple(Rule(gpu.uuid, amount) for gpu, amount in amounts.items() if amount)
