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


def test_requests_come_first_and_the_rest_goes_by_weight() -> None:
    parts = entitlements(terms(a=SchedParams(request_percent=60, weight=60), b=SchedParams(weight=100)))
    assert list(parts.values()) == pytest.approx([0.75, 0.25])


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
