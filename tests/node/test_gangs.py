# SPDX-License-Identifier: Apache-2.0
"""Which tenants a gang's name joins."""

from __future__ import annotations

import pytest

from hypervisor.model import EffectiveQuota, Source, TenantName
from hypervisor.node.gangs import TenantGang, gang_of
from hypervisor.node.registry import Tenant
from hypervisor.scheduler.types import GANG_OFF
from limiter.quota import GangMode, Quota

POD, OTHER_POD = "8f8e6f5c-6b0f-4a57-9d7c-0c7b4f6a2d11", "8f8e6f5c-6b0f-4a57-9d7c-0c7b4f6a2d12"


def tenant(
    name: str = "a",
    *,
    uid: int = 1000,
    gang: str | None = "job",
    said_by: Source | None = "environment",
    pod_uid: str | None = None,
    pod: str = "",
) -> Tenant:
    effective = EffectiveQuota(Quota(gang=gang), "default", said_by)
    return Tenant(TenantName(name), uid, effective, Quota(), pod_uid=pod_uid, pod=pod)


def pod(uid: str = POD, title: str = "team-a/worker-0", container: str = "", **more: Source) -> Tenant:
    dot = f".{container}" if container else ""
    return tenant(f"pod-{uid}{dot}", uid=0, pod_uid=uid, pod=title, **{"said_by": "pod", **more})


def container(digits: str = "aaaaaaaaaaaa", *, uid: int = 0, said_by: Source = "environment") -> Tenant:
    return tenant(f"container-{digits}", uid=uid, said_by=said_by)


def ids(*tenants: Tenant) -> list[str]:
    return [gang_of(one).id for one in tenants]


def test_pods_of_one_namespace_join_by_name() -> None:
    one, other = ids(pod(), pod(OTHER_POD, "team-a/worker-1"))
    assert one == other == "team-a/job"
    assert ids(pod(OTHER_POD, "team-b/worker-1")) == ["team-b/job"]


def test_containers_of_a_pod_with_quotas_of_their_own_join_by_name() -> None:
    assert len(set(ids(pod(), pod(container="a"), pod(container="b")))) == 1


def test_a_pod_whose_namespace_is_not_known_joins_itself_alone() -> None:
    own, container_of_it, other = ids(pod(title=""), pod(title="", container="a"), pod(OTHER_POD, ""))
    assert own == container_of_it == f"pod:{POD}/job"
    assert own != other


def test_tenants_of_one_user_join_by_name() -> None:
    assert ids(tenant("a"), tenant("b")) == ["uid:1000/job"] * 2
    assert ids(tenant("c", uid=1001)) == ["uid:1001/job"]
    assert ids(tenant("a", said_by="config"), tenant("b", said_by="api")) == ["uid:1000/job"] * 2


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_container_joins_no_other_by_its_own_word_whatever_user_it_runs_as(uid: int) -> None:
    one, other = container(uid=uid), container("bbbbbbbbbbbb", uid=uid)
    assert len({*ids(one, other), *ids(tenant(uid=uid))}) == 3


def test_containers_join_by_an_operators_word() -> None:
    for said_by in ("api", "config"):
        one, other = container(said_by=said_by), container("bbbbbbbbbbbb", uid=1000, said_by=said_by)
        assert ids(one, other) == ["container:*/job"] * 2


def test_no_namespace_and_no_tenant_has_the_id_of_another_kind() -> None:
    kinds = ids(pod(title="uid/p"), pod(title="container-aaaaaaaaaaaa/p"), container(), tenant())
    assert len(set(kinds)) == len(kinds)
    assert all("/" in one for one in kinds)  # no tenant's name has one


@pytest.mark.parametrize(
    ("gang", "mode", "term"),
    [
        (None, GangMode.AUTO, ""),
        ("auto", GangMode.AUTO, ""),
        ("off", GangMode.OFF, GANG_OFF),
        ("job", GangMode.NAMED, "uid:1000/job"),
    ],
)
def test_what_is_not_named_has_no_id(gang: str | None, mode: GangMode, term: str) -> None:
    found = gang_of(tenant(gang=gang))
    assert (found.mode, found.term) == (mode, term)
    assert found.id == (term if mode == GangMode.NAMED else "")
    assert TenantGang().term == ""
