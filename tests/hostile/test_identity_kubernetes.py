# SPDX-License-Identifier: Apache-2.0
"""Attempts to be taken for a pod, or for a plain process, on a node of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.conftest import Daemon, needs_root
from tests.hostile.conftest import Groups, Hostile
from tests.k8s.conftest import fake_api as fake_api  # a fixture here too
from tests.k8s.fake_api import FakeApi, pod

pytestmark = needs_root()
DONE, CHANGED, FORBIDDEN, NOT_YET = 200, 204, 403, 503
NODE = "node-a"
CONTAINER = "c" * 64
Start = Callable[..., Daemon]


@pytest.fixture
def cluster(daemon: Start, fake_api: FakeApi) -> Start:
    """Start daemons that are in a cluster."""

    def start(**options: Any) -> Daemon:
        told = {"kubernetes": "on", "node_name": NODE, "kube_api": fake_api.url}
        return daemon(**told, **options)

    return start


REGISTERS = """
status, headers, answer = register(SETTINGS.get("tenant", ""), {"GPULIMIT_MEMORY": "900GiB"})
say(status=status, tenant=headers.get("gpulimit-tenant"), error=answer.get("error", ""))
hear()
"""


def test_a_user_who_names_his_own_group_like_a_pod_of_the_cluster_is_none(
    cluster: Start,
    fake_api: FakeApi,
    attack: Hostile,
    control_group: Groups,
    attacker_uid: int,
    victim_uid: int,
    tenant: str,
) -> None:
    made = pod("victim", memory="1Gi")
    uid = made["metadata"]["uid"]
    fake_api.put(made)
    node = cluster()
    place = control_group(f"gpulimit-test/kubepods/pod{uid}/{CONTAINER}")
    victim = attack(REGISTERS, uid=victim_uid, group=place)
    assert victim.heard()["tenant"] == f"pod-{uid}"
    home = control_group(
        f"user.slice/user-{attacker_uid}.slice/user@{attacker_uid}.service", owner=attacker_uid
    )
    text = f"""
group = {str(home)!r} + "/kubepods/pod{uid}/{CONTAINER}"
os.makedirs(group)
open(group + "/cgroup.procs", "w").write("0")
status, headers, answer = register({tenant!r}, {{"GPULIMIT_COMPUTE": "1"}})
say(status=status, tenant=headers.get("gpulimit-tenant"), seen=len(ask("GET", "/v1/state")[2]["tenants"]))
hear()
"""
    one = attack(text, uid=attacker_uid, group=home)
    assert one.heard() == {"status": DONE, "tenant": tenant, "seen": 1}
    assert len(node.tenant(f"pod-{uid}")["workers"]) == 1
    one.tell(None)
    victim.tell(None)


@pytest.mark.parametrize(
    "layout",
    [
        "gpulimit-test/default/busybox",
        "gpulimit-test.slice/kubepods.slice/kubepods-besteffort.slice/something-new.scope",
        "lxc.payload.gpulimit-test",
        "gpulimit-test.slice/runc-web.scope",
        "gpulimit-test.slice/containerd.service/web",
    ],
)
@pytest.mark.parametrize("uid", [None, 65534])
def test_a_process_in_an_unknown_layout_names_no_tenant_and_no_quota(
    cluster: Start, attack: Hostile, control_group: Groups, tenant: str, layout: str, uid: int | None
) -> None:
    """It may be in a container of a runtime that is not known: root in it is no operator either."""
    node = cluster()
    text = f"""
say(operator=ask("PUT", "/v1/tenants/{tenant}/quota", {{"memory": "1GiB"}})[0])
{REGISTERS}
"""
    group = control_group(layout)
    one = attack(text, uid=uid, group=group, settings={"tenant": tenant})
    assert one.heard() == {"operator": FORBIDDEN}
    said = one.heard()
    assert (said["status"], said["tenant"]) == (FORBIDDEN, None)
    assert f"/{layout}" in said["error"] and "runtime that is not known" in said["error"]
    refused = [event for event in node.state()["events"] if event["kind"] == "refused"]
    assert f"/{layout}" in refused[-1]["text"]
    assert node.state()["tenants"] == []
    one.tell(None)


@pytest.mark.parametrize(
    "layout",
    ["gpulimit-test.slice/train.service", "gpulimit-test.slice/user-7.slice/session-2.scope", "init.scope"],
)
def test_a_plain_process_of_the_node_is_one_in_a_cluster_too(
    cluster: Start, attack: Hostile, control_group: Groups, tenant: str, layout: str
) -> None:
    node = cluster()
    text = 'say(operator=ask("PUT", "/v1/tenants/x/quota", {"memory": "1GiB"})[0])\n' + REGISTERS
    one = attack(text, uid=None, group=control_group(layout), settings={"tenant": tenant})
    assert one.heard() == {"operator": DONE}
    assert one.heard() == {"status": DONE, "tenant": tenant, "error": ""}
    assert len(node.tenant(tenant)["workers"]) == 1
    one.tell(None)


def test_without_a_cluster_an_unknown_layout_is_a_plain_processs(
    daemon: Start, attack: Hostile, control_group: Groups, tenant: str
) -> None:
    node = daemon()
    one = attack(
        f'say(status=register({tenant!r}, {{"GPULIMIT_COMPUTE": "1"}})[0]); hear()',
        group=control_group("gpulimit-test/job-7"),
    )
    assert one.heard() == {"status": DONE}
    assert node.tenant(tenant)["uid"] == 65534
    one.tell(None)


def test_a_pod_that_the_cluster_does_not_know_waits(
    cluster: Start, attack: Hostile, control_group: Groups, tenant: str
) -> None:
    node = cluster()
    uid = "1a2b3c4d-0000-4000-8000-00000000000a"
    group = control_group(f"gpulimit-test/kubepods/pod{uid}/{CONTAINER}")
    one = attack(REGISTERS, uid=None, group=group, settings={"tenant": tenant})
    assert one.heard()["status"] == NOT_YET
    assert node.state()["tenants"] == []
    one.tell(None)
