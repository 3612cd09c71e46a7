# SPDX-License-Identifier: Apache-2.0
"""Shares of one GPU by request, weight and demand. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.model import TenantName
from hypervisor.scheduler.types import SchedParams
from limiter.units import PERCENT


def entitlements(terms: Mapping[TenantName, SchedParams]) -> dict[TenantName, float]:
    """Return the share of each tenant if all use all they can get: the request, and the rest by weight.

    A share is at most the limit; the time that frees goes to the other tenants. The sum is 1 unless limits
    forbid it.
    """
    requested = sum(t.request_percent for t in terms.values())
    scale = PERCENT / requested if requested > PERCENT else 1.0
    base = {name: t.request_percent * scale / PERCENT for name, t in terms.items()}
    wanted = {name: t.limit_percent / PERCENT for name, t in terms.items()}
    return water_fill(terms, wanted, base=base)


def water_fill(
    terms: Mapping[TenantName, SchedParams],
    wanted: Mapping[TenantName, float],
    *,
    base: Mapping[TenantName, float] | None = None,
) -> dict[TenantName, float]:
    """Divide 1 by weight on top of `base`. No tenant gets more than `wanted`."""
    share = {name: min((base or {}).get(name, 0.0), wanted[name]) for name in terms}
    open_names = {name for name in terms if wanted[name] > share[name]}
    while open_names:
        spare = 1.0 - sum(share.values())
        if spare <= 1e-9:
            break
        weights = sum(terms[name].weight for name in open_names)
        full = set()
        for name in open_names:
            share[name] += spare * terms[name].weight / weights
            if share[name] >= wanted[name]:
                share[name] = wanted[name]
                full.add(name)
        if not full:
            break
        open_names -= full
    return share
