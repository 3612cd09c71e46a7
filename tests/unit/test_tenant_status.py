# SPDX-License-Identifier: Apache-2.0
"""What `gpulimit status` shows of gangs without a daemon."""

from __future__ import annotations

import pytest

from limiter.segment import Device, GangUsage, Usage
from limiter.tenant_status import gang_lines, rows
from limiter.tenants import TenantSnapshot

GIB = 1 << 30


def device(entry: int) -> Device:
    return Device(
        entry,
        f"0000000{entry}-7a25-704c-9090-8b0bb2478114",
        is_mig=False,
        card_bytes=80 * GIB,
        memory_limit_bytes=80 * GIB,
        used_bytes=0,
        context_bytes=0,
        refused=0,
        refused_by_card=0,
        compute_limit_percent=100,
        weight=100,
        granted_ns=0,
        spent_ns=0,
        throttled_ns=0,
        throttled_count=0,
        is_suspended=False,
    )


def lines(entries: tuple[int, ...]) -> list[str]:
    usage = Usage("team", 0, 1, (device(0), device(1), device(2)), (), GangUsage(entries))
    seen = TenantSnapshot(0, {"team": usage}, {})
    return gang_lines(rows(seen, seen))


@pytest.mark.parametrize("entries", [(), (1,), (7, 8)])
def test_what_waits_on_no_two_gpus_is_no_gang(entries: tuple[int, ...]) -> None:
    assert lines(entries) == []


def test_a_tenant_that_waits_on_several_gpus_is_a_gang() -> None:
    assert lines((0, 2)) == ["gang team: on GPU-00000000, GPU-00000002"]
