# SPDX-License-Identifier: Apache-2.0
"""Recovery from a policy segment: believed only where a tenant's own processes could not write it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hypervisor.model import DeviceQuota, EffectiveQuota, Gpu, GpuUuid, TenantName, device_quota
from hypervisor.node.events import EventLog
from hypervisor.node.quota_policy import QuotaSources
from hypervisor.node.recovery import Recovery
from hypervisor.node.registry import Registry, Tenant
from hypervisor.node.segment_health import SegmentHealth
from hypervisor.node.state_store import StateStore
from limiter.quota import Quota, Rule

GIB = 1 << 30
GPU = Gpu(GpuUuid("GPU-a"), 0, 80 * GIB)
SAVED = Quota(memory=(Rule("*", 2 * GIB),))
WRITTEN = device_quota(Quota(memory=(Rule("*", 64 * GIB),)), GPU)


class Segments:
    """Segments of one tenant with a living process, whose policy says `limits`."""

    def __init__(self, limits: dict[Gpu, DeviceQuota], *, is_suspended: bool, is_read_only: bool) -> None:
        self._found = limits, is_suspended
        self.has_read_only_policies = is_read_only

    def open(self, tenant: Tenant, before_publishing: Any) -> Any:
        opened = SimpleNamespace(usage=SimpleNamespace(count_living=lambda: 1))
        before_publishing(tenant, opened)
        return opened

    def in_force(self, _: Any) -> tuple[dict[Gpu, DeviceQuota], bool]:
        return self._found


def recovered(tmp_path: Path, tenant: Tenant, segments: Segments) -> Tenant:
    registry = Registry(QuotaSources(admission="propose"), boot="boot", overcommit_percent=100)
    registry.sources.api[tenant.name] = tenant.effective.quota
    anything: Any = segments
    store, events = StateStore(str(tmp_path)), EventLog()
    Recovery(store, registry, anything, anything, SegmentHealth(events), events).open(tenant)
    return tenant


@pytest.mark.parametrize(
    ("is_read_only", "containers", "memory"),
    [
        (True, {"c"}, 64 * GIB),
        (False, set(), 64 * GIB),
        (False, {"c"}, 2 * GIB),  # root of the container could have written it
    ],
)
def test_a_policy_that_a_container_could_write_raises_nothing(
    tmp_path: Path, is_read_only: bool, containers: set[str], memory: int
) -> None:
    tenant = Tenant(TenantName("t"), 0, EffectiveQuota(SAVED, "api"), Quota(), containers=containers)
    segments = Segments({GPU: WRITTEN}, is_suspended=False, is_read_only=is_read_only)
    found = recovered(tmp_path, tenant, segments)
    assert device_quota(found.effective.quota, GPU).memory_bytes == memory


@pytest.mark.parametrize(("saved", "found", "after"), [(True, False, True), (False, True, True)])
def test_such_a_policy_never_ends_a_suspension(tmp_path: Path, saved: bool, found: bool, after: bool) -> None:
    tenant = Tenant(
        TenantName("t"), 0, EffectiveQuota(SAVED, "api"), Quota(), containers={"c"}, is_suspended=saved
    )
    segments = Segments({GPU: device_quota(SAVED, GPU)}, is_suspended=found, is_read_only=False)
    assert recovered(tmp_path, tenant, segments).is_suspended == after


def test_a_container_without_kubernetes_is_believed_no_more_than_a_pod(tmp_path: Path) -> None:
    tenant = Tenant(TenantName("container-0123456789ab"), 0, EffectiveQuota(SAVED, "api"), Quota())
    segments = Segments({GPU: WRITTEN}, is_suspended=False, is_read_only=False)
    assert device_quota(recovered(tmp_path, tenant, segments).effective.quota, GPU).memory_bytes == 2 * GIB


def test_a_quota_that_is_recovered_from_a_policy_keeps_its_gang(tmp_path: Path) -> None:
    saved = EffectiveQuota(replace(SAVED, gang="job"), "api", "api")
    segments = Segments({GPU: WRITTEN}, is_suspended=False, is_read_only=True)
    found = recovered(tmp_path, Tenant(TenantName("t"), 0, saved, Quota()), segments).effective
    assert device_quota(found.quota, GPU).memory_bytes == 64 * GIB
    assert (found.quota.gang, found.gang_source) == ("job", "api")
