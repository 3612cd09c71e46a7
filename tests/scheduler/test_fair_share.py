# SPDX-License-Identifier: Apache-2.0
"""Dividing a GPU: requests, weights, limits, and what happens when the numbers do not add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.model import TenantName
from hypervisor.scheduler.fair_share import entitlements, water_fill
from hypervisor.scheduler.types import SchedParams


def terms(**kinds: SchedParams) -> dict[TenantName, SchedParams]:
    return {TenantName(name): t for name, t in kinds.items()}


def test_without_requests_weights_decide() -> None:
    parts = entitlements(terms(a=SchedParams(weight=1), b=SchedParams(weight=3)))
    assert list(parts.values()) == pytest.approx([0.25, 0.75])


def quota(request: int = 0, weight: int = 100, limit: int = 100) -> SchedParams:
    return SchedParams(request_percent=request, weight=weight, limit_percent=limit)


@pytest.mark.parametrize(
    ("quotas", "shares"),
    [
        ([quota(20), quota()], [0.5, 0.5]),
        ([quota(60), quota()], [0.6, 0.4]),
        ([quota(50), quota(50)], [0.5, 0.5]),
        ([quota(25), quota(75)], [0.25, 0.75]),
        ([quota(100), quota()], [1.0, 0.0]),
        ([quota(60, weight=60), quota()], [0.6, 0.4]),
        ([quota(20, weight=300), quota()], [0.75, 0.25]),
        ([quota(20, weight=10), quota(weight=90)], [0.2, 0.8]),
        ([quota(60), quota(), quota()], [0.6, 0.2, 0.2]),
        ([quota(60), quota(weight=300), quota()], [0.6, 0.3, 0.1]),
        ([quota(60, weight=1), quota(weight=1), quota(20, weight=2)], [0.6, 0.4 / 3, 0.8 / 3]),
        ([quota(60), quota(30), quota()], [0.6, 0.3, 0.1]),
        ([quota(50), quota(30), quota(20)], [0.5, 0.3, 0.2]),
        ([quota(60, limit=60), quota(limit=30), quota()], [0.6, 0.2, 0.2]),
        ([quota(limit=20), quota(35), quota()], [0.2, 0.4, 0.4]),
        ([quota(limit=20), quota(60), quota()], [0.2, 0.6, 0.2]),
        ([quota(80), quota(80)], [0.5, 0.5]),
        ([quota(75), quota(75), quota()], [0.5, 0.5, 0.0]),
        ([quota(40, limit=30), quota()], [0.3, 0.7]),
    ],
)
def test_weights_decide_and_a_request_is_a_floor(quotas: list[SchedParams], shares: list[float]) -> None:
    parts = entitlements(terms(**{f"t{place}": one for place, one in enumerate(quotas)}))
    assert list(parts.values()) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("wanted", "quotas", "got"),
    [
        ([], [], []),
        ([0.3, 0.2], [quota(), quota()], [0.3, 0.2]),
        ([1, 1], [quota(weight=1), quota(weight=3)], [0.25, 0.75]),
        ([0.1, 1, 1], [quota(), quota(), quota()], [0.1, 0.45, 0.45]),
        ([0, 1], [quota(weight=5), quota(weight=1)], [0, 1]),
        ([0.2, 0.25, 1], [quota(), quota(), quota(weight=200)], [0.2, 0.25, 0.55]),
        ([0.1, 1], [quota(60), quota()], [0.1, 0.9]),
        ([1, 1, 0.1], [quota(60), quota(), quota()], [0.6, 0.3, 0.1]),
    ],
)
def test_what_is_not_wanted_goes_to_the_others_by_weight(
    wanted: list[float], quotas: list[SchedParams], got: list[float]
) -> None:
    names = [TenantName(f"t{place}") for place in range(len(quotas))]
    parts = water_fill(dict(zip(names, quotas, strict=True)), dict(zip(names, wanted, strict=True)))
    assert list(parts.values()) == pytest.approx(got)


def test_what_a_limit_frees_goes_to_the_others() -> None:
    parts = entitlements(terms(a=SchedParams(limit_percent=10), b=SchedParams(), c=SchedParams()))
    assert list(parts.values()) == pytest.approx([0.10, 0.45, 0.45])


def test_who_wants_little_leaves_the_rest() -> None:
    parts = water_fill(terms(a=SchedParams(), b=SchedParams()), {TenantName("a"): 0.1, TenantName("b"): 1.0})
    assert list(parts.values()) == pytest.approx([0.1, 0.9])


TERMS = st.builds(
    SchedParams,
    limit_percent=st.integers(1, 100),
    request_percent=st.integers(0, 100),
    weight=st.integers(1, 10_000),
)


@given(st.dictionaries(st.text(min_size=1, max_size=3), TERMS, min_size=1, max_size=12))
def test_never_more_than_the_gpu_nor_than_a_limit(everybody: dict[str, SchedParams]) -> None:
    parts = entitlements({TenantName(n): t for n, t in everybody.items()})
    assert sum(parts.values()) <= 1 + 1e-6
    for name, part in parts.items():
        assert 0 <= part <= everybody[name].limit_percent / 100 + 1e-9
    unmet = [n for n, p in parts.items() if p < everybody[n].limit_percent / 100 - 1e-9]
    assert not unmet or sum(parts.values()) >= 1 - 1e-6  # nothing lies idle while somebody may have it


@given(st.dictionaries(st.text(min_size=1, max_size=3), TERMS, min_size=1, max_size=12))
def test_requests_that_fit_are_met(everybody: dict[str, SchedParams]) -> None:
    if sum(t.request_percent for t in everybody.values()) > 100:
        return
    parts = entitlements({TenantName(n): t for n, t in everybody.items()})
    for name, part in parts.items():
        wanted = min(everybody[name].request_percent, everybody[name].limit_percent) / 100
        assert part >= wanted - 1e-9


@given(st.dictionaries(st.text(min_size=1, max_size=3), TERMS, min_size=1, max_size=12))
def test_shares_between_request_and_limit_are_by_weight(everybody: dict[str, SchedParams]) -> None:
    """One unit of time per weight holds for all of them; above it are only requests, below it only limits."""
    parts = entitlements({TenantName(n): t for n, t in everybody.items()})
    scale = max(100, sum(t.request_percent for t in everybody.values()))
    most = {n: t.limit_percent / 100 for n, t in everybody.items()}
    least = {n: min(t.request_percent / scale, most[n]) for n, t in everybody.items()}
    units = {n: part / everybody[TenantName(n)].weight for n, part in parts.items()}
    uncapped = [units[TenantName(n)] for n in everybody if parts[TenantName(n)] < most[n] - 1e-9]
    unlifted = [units[TenantName(n)] for n in everybody if parts[TenantName(n)] > least[n] + 1e-9]
    assert max(unlifted, default=0.0) <= min(uncapped, default=1.0) * (1 + 1e-6) + 1e-9
