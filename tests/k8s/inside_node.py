# SPDX-License-Identifier: Apache-2.0
"""What a whole node of real parts does with a daemon of ours; run by test_real_node.py."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import remove_segments
from tests.daemon.conftest import Daemon
from tests.k8s.node import NAME, RealNode, workload
from tests.k8s.test_tenants import value

pytestmark = pytest.mark.timeout(240)
MIB, GIB = 1 << 20, 1 << 30
RESOURCE = "gpulimit.io/gpu"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    made = RealNode(tmp_path_factory.mktemp("node"))
    made.wait(made.is_ready)
    yield made
    made.close()


@pytest.fixture
def node(plane: RealNode, daemon: Callable[..., Daemon], run_dir: Path) -> Iterator[Callable[..., Daemon]]:
    """Start daemons that offer cards; pods end with the test."""

    def start(*, is_offering: bool = True, **options: str) -> Daemon:
        made = daemon(
            **{
                "kubernetes": "on",
                "node_name": NAME,
                "kube_api": plane.url,
                "kube_token_file": str(plane.token_file),
                "kube_ca_file": str(plane.ca_file),
                "kubelet_ca_file": str(plane.kubelet_ca_file),
                "device_plugin": "on",
                "library_dir": str(run_dir / "lib"),
                **options,
            }
        )
        if is_offering:
            # What the kubelet offers may still be what the daemon before had.
            plane.wait(lambda: made.state()["counts"].get("card_offered"))
            time.sleep(1)
            plane.wait(lambda: plane.allocatable(RESOURCE) == 10)
        return made

    yield start
    path = "/api/v1/namespaces/default/pods"
    uids = [one["metadata"]["uid"] for one in plane.request("GET", path)["items"]]
    for one in plane.request("GET", path)["items"]:
        plane.delete_pod("default", one["metadata"]["name"])
    plane.wait(lambda: not plane.request("GET", path)["items"])
    for uid in uids:
        remove_segments(f"pod-{uid}")


def total(plane: RealNode, made: dict[str, Any], container: str = "main") -> int | None:
    """Return how large a container's program finds its card."""
    words = plane.says(made, container).split()
    return int(words[1]) if words[:1] == ["total"] else None


def test_a_pod_gets_a_card_and_its_quota(plane: RealNode, node: Callable[..., Daemon]) -> None:
    ours = node()
    made = plane.run_pod("train", annotations={"memory": "1Gi", "compute": "30"}, mib=2000)
    plane.wait(lambda: plane.says(made) == f"total {GIB} alloc 2")  # out of memory
    events = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=train,reason="
    plane.wait(lambda: plane.request("GET", f"{events}MemoryRefused")["items"])
    shown = ours.tenant(f"pod-{made['metadata']['uid']}")
    assert shown is not None
    assert (shown["pod"], shown["source"]) == ("default/train", "pod")
    plane.wait(
        lambda: (
            value(ours, "client_memory_quota_bytes", namespace="default", pod="train", container="main")
            == GIB
        )
    )

    begin = time.monotonic()
    plane.annotate("default", "train", {"memory": "3Gi"})
    plane.wait(lambda: plane.says(made) == f"total {3 * GIB} alloc 0")
    assert time.monotonic() - begin < 2  # the program looks every 100 ms, and its words take a while

    plane.annotate("default", "train", {"memory": "much"})
    plane.wait(lambda: plane.request("GET", f"{events}QuotaInvalid")["items"])
    assert total(plane, made) == 3 * GIB

    plane.delete_pod("default", "train")
    plane.wait(lambda: ours.tenant(f"pod-{made['metadata']['uid']}") is None, within_s=20)


def test_pods_of_one_job_are_one_gang(plane: RealNode, node: Callable[..., Daemon]) -> None:
    ours = node()
    said = {"gang": "llama", "memory": "1Gi"}
    pods = [plane.run_pod(f"rank-{n}", annotations=said) for n in (0, 1)]
    members = {f"pod-{made['metadata']['uid']}" for made in pods}

    def gangs() -> dict[str, set[str]]:
        return {gang["id"]: set(gang["members"]) for gang in ours.state()["gangs"]}

    plane.wait(lambda: gangs() == {"default/llama": members})
    plane.wait(lambda: value(ours, "gang_members", gang="default/llama") == 2)
    plane.annotate("default", "rank-1", {"gang": "off"})
    plane.wait(lambda: gangs() == {"default/llama": {f"pod-{pods[0]['metadata']['uid']}"}})
    assert [total(plane, made) for made in pods] == [GIB, GIB]  # a gang is no limit


def test_containers_with_quotas_of_their_own(plane: RealNode, node: Callable[..., Daemon]) -> None:
    node()
    said = {"a.memory": "1Gi", "b.memory": "2Gi"}
    made = plane.run_pod("two", annotations=said, containers=("a", "b"))
    plane.wait(lambda: total(plane, made, "a") == GIB and total(plane, made, "b") == 2 * GIB)


def test_a_pod_whose_quota_cannot_be_read_gets_no_gpu(plane: RealNode, node: Callable[..., Daemon]) -> None:
    node()
    plane.request("POST", "/api/v1/namespaces/default/pods", workload("typo", {"memroy": "1Gi"}))
    made = plane.running("typo")
    plane.wait(lambda: plane.says(made).startswith("error"))


def test_pods_run_on_while_daemon_and_kubelet_are_restarted(
    plane: RealNode, node: Callable[..., Daemon]
) -> None:
    ours = node()
    made = plane.run_pod("steady", annotations={"memory": "1Gi"})
    plane.wait(lambda: total(plane, made) == GIB)
    ours.stop(signal.SIGKILL)
    time.sleep(1)
    assert total(plane, made) == GIB
    again = node()
    tenant = f"pod-{made['metadata']['uid']}"
    plane.wait(lambda: (again.tenant(tenant) or {}).get("workers"))
    plane.annotate("default", "steady", {"memory": "2Gi"})
    plane.wait(lambda: total(plane, made) == 2 * GIB)

    plane.stop_kubelet()
    plane.start_kubelet()
    # Until then the node's status is what the kubelet before had, and pods that come too soon fail.
    plane.wait(lambda: again.state()["counts"].get("plugin_registered") == 2)
    time.sleep(3)
    plane.wait(lambda: plane.allocatable(RESOURCE) == 10 and plane.is_ready())
    other = plane.run_pod("other", annotations={"memory": "3Gi"})
    plane.wait(lambda: total(plane, other) == 3 * GIB)
    assert total(plane, made) == 2 * GIB
    assert plane.running("steady")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_the_real_kubelet_stands_in_for_the_api_server(plane: RealNode, node: Callable[..., Daemon]) -> None:
    ours = node()
    made = plane.run_pod("train", annotations={"memory": "1Gi"})
    plane.wait(lambda: total(plane, made) == GIB)
    ours.stop(signal.SIGKILL)
    plane.kill_api()
    try:
        again = node(
            is_offering=False, state_dir=""
        )  # nothing is remembered: what is known of the pod is the kubelet's word
        plane.wait(lambda: value(again, "kube_kubelet_fallback") == 1)
        shown = plane.wait(lambda: again.tenant(f"pod-{made['metadata']['uid']}"))
        assert (shown["pod"], shown["source"]) == ("default/train", "pod")
        assert total(plane, made) == GIB
    finally:
        plane.start_api()
    plane.wait(lambda: value(again, "kube_watch_up") == 1)
    plane.annotate("default", "train", {"memory": "2Gi"})
    plane.wait(lambda: total(plane, made) == 2 * GIB)


def test_a_static_pod(plane: RealNode, node: Callable[..., Daemon]) -> None:
    ours = node()
    manifest = plane.static_pods / "static.json"
    manifest.write_text(json.dumps(workload("static", {"memory": "1Gi"})))
    try:
        mirror = plane.running(f"static-{NAME}")
        uid = mirror["metadata"]["annotations"]["kubernetes.io/config.hash"]
        assert uid != mirror["metadata"]["uid"]
        shown = plane.wait(lambda: ours.tenant(f"pod-{uid}"))
        assert (shown["pod"], shown["source"]) == (f"default/static-{NAME}", "pod")
        own = {"metadata": {**mirror["metadata"], "uid": uid}}
        plane.wait(lambda: total(plane, own) == GIB)
    finally:
        manifest.unlink()
        remove_segments(f"pod-{uid}")


def test_nothing_is_said_of_pods_that_are_well(plane: RealNode, node: Callable[..., Daemon]) -> None:
    node()
    made = plane.run_pod("well", annotations={"memory": "1Gi"})
    plane.wait(lambda: total(plane, made) == GIB)
    path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=well,source=gpulimit"
    assert plane.request("GET", path)["items"] == []
