# SPDX-License-Identifier: Apache-2.0
"""A tenant's limits, read back from its policy, are a quota that gives the same limits again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hypervisor.model import Gpu, GpuUuid, device_quota
from hypervisor.node.policy_limits import matches_limits, quota_of
from limiter import quota
from limiter.errors import QuotaError

GIB = 1 << 30
GPUS = [
    Gpu(GpuUuid(f"GPU-{n:08}-0000-0000-0000-000000000000"), n, size * GIB)
    for n, size in enumerate((80, 80, 40))
]
QUOTAS = (
    {},
    {"memory": "4GiB"},
    {"memory": "50%", "compute": "30"},
    {"memory": "0=4GiB,*=1GiB", "compute": "30", "request": "20"},
    {"memory": "1=4GiB"},
    {"memory": "100%", "weight": "7", "priority": "low"},
    {"compute": "0=50,1=30", "memory_wait": "30"},
    {"compute": "0=50", "request": "30"},
    {"request": "100", "priority": "high"},
)


@pytest.mark.parametrize("said", QUOTAS)
@pytest.mark.parametrize("gpus", [GPUS[:1], GPUS[:2], GPUS])
def test_a_quota_comes_back_from_its_limits(said: dict[str, str], gpus: list[Gpu]) -> None:
    given = quota.read({f"GPULIMIT_{name.upper()}": value for name, value in said.items()})
    limits = {gpu: device_quota(given, gpu) for gpu in gpus}
    assert matches_limits(given, limits)
    if not any(limit.memory_bytes for limit in limits.values()):
        return  # it names none of these GPUs
    found = quota_of(limits)
    assert matches_limits(found, limits)
    assert quota.read(found.environ()).environ() == found.environ()  # it can be saved


def test_limits_that_no_quota_means_are_said_so() -> None:
    given = quota.read({"GPULIMIT_COMPUTE": "30", "GPULIMIT_REQUEST": "20"})
    limits = {GPUS[0]: device_quota(given, GPUS[0])}
    wrong = {gpu: replace(limit, request_percent=60) for gpu, limit in limits.items()}
    with pytest.raises(QuotaError):
        quota_of(wrong)
