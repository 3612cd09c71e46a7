# SPDX-License-Identifier: Apache-2.0
"""Shares of one GPU by weight, request, limit and demand. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.model import TenantName
from hypervisor.scheduler.types import SchedParams
from limiter.units import PERCENT

EXACT = 1e-12
"""Differences between sums of shares up to this are rounding errors."""


def entitlements(terms: Mapping[TenantName, SchedParams]) -> dict[TenantName, float]:
    """Return the share of each tenant, 0 to 1, if every tenant uses all it can get."""
    return water_fill(terms, dict.fromkeys(terms, 1.0))


def water_fill(
    terms: Mapping[TenantName, SchedParams], wanted: Mapping[TenantName, float]
) -> dict[TenantName, float]:
    """Divide 1 by weight. Raise a share below its request to the request, and cut a share above its limit or
    `wanted`.

    The other tenants divide the rest by weight, so a request that the weight alone meets changes nothing.
    The sum is 1 unless limits and `wanted` forbid it. If the requests exceed 1, they are scaled down.
    """
    most = {name: min(t.limit_percent / PERCENT, wanted[name]) for name, t in terms.items()}
    scale = PERCENT * max(1.0, sum(t.request_percent for t in terms.values()) / PERCENT)
    least = {name: min(t.request_percent / scale, most[name]) for name, t in terms.items()}
    shares: dict[TenantName, float] = {}
    open_names = list(terms)
    while open_names:
        unit = (1.0 - sum(shares.values())) / sum(terms[name].weight for name in open_names)
        by_weight = {name: unit * terms[name].weight for name in open_names}
        bounded = {name: min(most[name], max(least[name], by_weight[name])) for name in open_names}
        excess = sum(bounded.values()) - sum(by_weight.values())
        # A raised share takes from the other shares, and a cut one gives to them. The larger sum is final.
        if excess > EXACT:
            settled = {name: share for name, share in bounded.items() if share > by_weight[name]}
        elif excess < -EXACT:
            settled = {name: share for name, share in bounded.items() if share < by_weight[name]}
        else:
            settled = bounded
        shares.update(settled)
        open_names = [name for name in open_names if name not in settled]
    return {name: shares[name] for name in terms}
