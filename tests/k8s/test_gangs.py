# SPDX-License-Identifier: Apache-2.0
"""A job of several pods by annotation: a real daemon, processes in pods' control groups, an API server."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from limiter.quota import GangMode
from tests.daemon.conftest import Client, Daemon, eventually
from tests.k8s.fake_api import FakeApi, pod
from tests.k8s.test_tenants import InPod, Start, cluster, kubelet, reasons, value

__all__ = ["cluster", "kubelet"]
GIB = 1 << 30


def mode(one: Client) -> GangMode:
    return GangMode(one.tell(order="look")["gang"])


def gang(node: Daemon, one: Client) -> dict[str, Any]:
    shown = node.tenant(one.answer["tenant"])
    assert shown is not None
    return dict(shown["gang"])


def work_on(node: Daemon, one: Client, number: int) -> str:
    """Let a process use one GPU of the node; return it."""
    gpu = node.state()["gpus"][number]
    one.tell(order="device", gpu=gpu["uuid"], card_bytes=gpu["memory_bytes"])
    one.tell(order="spend", ns=1_000_000)
    return str(gpu["uuid"])


@pytest.fixture
def two_cards(daemon_env: dict[str, str]) -> None:
    daemon_env["GPULIMIT_SIM_PROFILE"] = "two-h100"


@pytest.mark.usefixtures("two_cards")
def test_pods_of_one_job_are_one_gang(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    said = {"gang": "llama", "request": "50"}
    pods = [fake_api.put(pod(f"rank-{n}", namespace="research", annotations=said)) for n in (0, 1)]
    stranger = fake_api.put(pod("rank-0", namespace="other", annotations=said))
    node = cluster()
    ranks = [in_pod(one) for one in pods]
    other = in_pod(stranger)
    used = [work_on(node, one, n) for n, one in enumerate(ranks)]
    work_on(node, other, 0)
    assert [mode(one) for one in (*ranks, other)] == [GangMode.NAMED] * 3
    by_id = {one["id"]: one for one in node.state()["gangs"]}
    assert by_id.keys() == {"research/llama", "other/llama"}
    assert by_id["research/llama"]["members"] == [one.answer["tenant"] for one in ranks]
    assert by_id["research/llama"]["gpus"] == sorted(used)
    names = {"namespace": "research", "pod": "rank-0", "gang": "research/llama", "mode": "named"}
    assert eventually(lambda: value(node, "client_gang_info", **names)) == 1
    assert value(node, "gang_members", gang="research/llama") == 2
    assert value(node, "gang_gpus", gang="research/llama") == 2


def test_a_pod_joins_and_leaves_a_gang_while_it_runs(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    made = fake_api.put(pod("train", annotations={"memory": "4Gi"}))
    node = cluster()
    one = in_pod(made)
    assert mode(one) == GangMode.AUTO
    fake_api.annotate("train", gang="job")
    eventually(lambda: mode(one) == GangMode.NAMED)
    assert gang(node, one) | {"waits_on": []} == {
        "id": "default/job",
        "mode": "named",
        "source": "pod",
        "waits_on": [],
        "released": 0,
    }
    eventually(lambda: reasons(fake_api, "train").get("QuotaChanged") == "now memory 4 GiB, gang job, by pod")
    fake_api.annotate("train", gang="off")
    eventually(lambda: mode(one) == GangMode.OFF)
    assert one.tell(order="look")["devices"][0]["memory_limit_bytes"] == 4 * GIB


def test_a_gang_that_cannot_be_read_is_told_and_the_old_one_stays(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    made = fake_api.put(pod("train", annotations={"gang": "job"}))
    broken = fake_api.put(pod("broken", annotations={"gang": "my job"}))
    cluster()
    one = in_pod(made)
    fake_api.annotate("train", gang="my job")
    told = eventually(lambda: reasons(fake_api, "train").get("QuotaInvalid"))
    assert told.startswith('gpulimit.io/gang: "my job" at character 3: a name is of letters')
    assert told.endswith("the quota that held so far is kept")
    assert mode(one) == GangMode.NAMED
    refused = in_pod(broken, expect=422)
    assert "gpulimit.io/gang" in refused.answer["error"]


def test_a_pods_environment_names_no_gang_and_can_say_off(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    plain, named = (fake_api.put(pod("a")), fake_api.put(pod("b", annotations={"gang": "job"})))
    node = cluster()
    one, other = in_pod(plain, environment={"GPULIMIT_GANG": "job"}), in_pod(named)
    assert (mode(one), gang(node, one)["id"]) == (GangMode.AUTO, None)
    assert gang(node, other)["id"] == "default/job"
    other.kill()
    eventually(lambda: (shown := node.tenant(other.answer["tenant"])) is None or not shown["workers"])
    again = in_pod(named, environment={"GPULIMIT_GANG": "off"}, run=1)
    assert mode(again) == GangMode.OFF


def test_containers_of_a_pod_have_gangs_of_their_own(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    said = {"memory": "8Gi", "gang": "job", "b.gang": "off"}
    made = fake_api.put(pod("train", containers=("a", "b"), annotations=said))
    node = cluster()
    one, other = in_pod(made, "a"), in_pod(made, "b")
    assert gang(node, one)["id"] == "default/job"
    assert (gang(node, other)["id"], mode(other)) == (None, GangMode.OFF)


def test_a_job_outlives_the_daemon_and_is_one_gang_again(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    pods = [fake_api.put(pod(f"rank-{n}", annotations={"gang": "job"})) for n in (0, 1)]
    node = cluster()
    ranks = [in_pod(one) for one in pods]
    node.stop()
    again = cluster()
    members = [one.answer["tenant"] for one in ranks]
    eventually(lambda: [sorted(g["members"]) for g in again.state()["gangs"]] == [sorted(members)])
    assert [mode(one) for one in ranks] == [GangMode.NAMED] * 2


def test_a_gang_holds_through_a_restart_of_the_daemon_while_the_cluster_is_away(
    cluster: Start, fake_api: FakeApi, kubelet: FakeApi, in_pod: InPod
) -> None:
    said = {"alone": {"gang": "job"}, "limited": {"gang": "job", "memory": "4Gi"}}
    pods = [fake_api.put(pod(name, annotations=one)) for name, one in said.items()]
    node = cluster()
    ranks = [in_pod(one) for one in pods]
    fake_api.stop()
    kubelet.stop()
    node.stop(signal.SIGKILL)
    again = cluster()
    again.process.send_signal(signal.SIGHUP)  # what is decided again is decided as before
    eventually(lambda: again.state()["counts"].get("config_read"))
    assert [gang(again, one)["id"] for one in ranks] == ["default/job"] * 2
    assert [mode(one) for one in ranks] == [GangMode.NAMED] * 2
    fake_api.annotate("alone", gang="off")
    fake_api.start()
    eventually(lambda: mode(ranks[0]) == GangMode.OFF, within_s=20)
