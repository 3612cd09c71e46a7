# SPDX-License-Identifier: Apache-2.0
"""`gpulimit run --report` over segments made by hand."""

from __future__ import annotations

from typing import Any

from limiter import segment
from limiter.run_report import Watcher
from tests.segments import craft


def write(tenant: str, **description: Any) -> None:
    segment.path_of(tenant).write_bytes(craft(description))


def device(**fields: Any) -> dict[str, Any]:
    return {"memory_limit_bytes": 4 << 30, "compute_limit_percent": 30} | fields


def slot(used_bytes: int, kernels: int, **fields: Any) -> dict[str, Any]:
    return {"accounts": [{"used_bytes": used_bytes, "launches": [kernels, 0, 0, 0]}]} | fields


def test_a_program_without_cuda_is_reported_as_such(tenant: str) -> None:
    assert "no CUDA process registered" in Watcher(tenant).describe()


def test_the_peak_is_remembered(tenant: str) -> None:
    watcher = Watcher(tenant)
    write(tenant, devices=[device()], slots=[slot(3 << 30, 5)])
    watcher.look()
    write(tenant, devices=[device(refused=2)], slots=[slot(1 << 30, 9)])
    text = watcher.describe()
    assert "peak 3 GiB (looked at every 50 ms) of 4 GiB, 2 refused" in text
    assert "9 kernel" in text


def test_a_process_whose_slot_was_taken_over_still_counts(tenant: str) -> None:
    watcher = Watcher(tenant)
    write(tenant, devices=[device()], slots=[slot(0, 5, pid=11)])
    watcher.look()
    write(tenant, devices=[device()], slots=[slot(0, 7, pid=12)])
    text = watcher.describe()
    assert "2 CUDA process(es)" in text
    assert "12 kernel" in text


def test_what_a_shared_tenant_used_before_the_run_is_left_out(tenant: str) -> None:
    write(tenant, devices=[device(spent_ns=10**9, refused=5)], slots=[slot(0, 0)])
    watcher = Watcher(tenant)
    write(tenant, devices=[device(spent_ns=3 * 10**9, refused=6)], slots=[slot(0, 0)])
    text = watcher.describe()
    assert "2 s spent" in text
    assert "1 refused" in text
