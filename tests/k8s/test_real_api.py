# SPDX-License-Identifier: Apache-2.0
"""The watch, and a daemon, against a real API server 1.20 with a real etcd (make test-k8s)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hypervisor.errors import KubeError
from hypervisor.k8s import client as client_module
from hypervisor.k8s.access import Access
from hypervisor.k8s.client import Client
from hypervisor.k8s.event_recorder import PodEvents, Subject
from tests.conftest import ROOT
from tests.daemon.conftest import Daemon, eventually
from tests.k8s import parts
from tests.k8s.fake_api import PODS, container_id, pod
from tests.k8s.parts import ControlPlane
from tests.k8s.test_watch import reading, value

WHY_NOT = parts.missing("etcd", "etcdctl", "kube-apiserver")
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.timeout(300)]
GIB = 1 << 30


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    made = ControlPlane(
        tmp_path_factory.mktemp("plane"), options=("--disable-admission-plugins=ServiceAccount",)
    )
    yield made
    made.close()


@pytest.fixture
def access(plane: ControlPlane) -> Access:
    return Access(plane.url, str(plane.token_file), str(plane.ca_file))


@pytest.fixture(autouse=True)
def clean(plane: ControlPlane) -> Iterator[None]:
    yield
    for one in plane.request("GET", PODS)["items"]:
        plane.delete_pod(one["metadata"]["namespace"], one["metadata"]["name"])


def names(plane: ControlPlane, *wanted: str, node: str = "node-a") -> list[dict[str, Any]]:
    return [plane.create_pod(pod(name, node=node)) for name in wanted]


def test_pods_of_this_node_and_their_changes(plane: ControlPlane, access: Access) -> None:
    names(plane, "first")
    names(plane, "elsewhere", node="node-b")
    with reading(access) as reader:
        reader.wait(lambda r: r.pods.keys() == {"first"} and r.watch.is_up)
        names(plane, "second")
        plane.annotate("default", "second", {"memory": "4Gi"})
        plane.delete_pod("default", "first")
        reader.wait(lambda r: r.pods.keys() == {"second"} and value(r, "second") == "4Gi")
        assert reader.watch.lists == 1
        assert not reader.watch.lists_by_stream  # 1.20 refuses that, and is asked for lists
        assert reader.watch.restarts == 0


def test_bookmarks_carry_the_watch_over_what_is_forgotten(plane: ControlPlane, access: Access) -> None:
    """Others' pods change, the stream ends with a bookmark, etcd forgets the versions before: no list."""
    names(plane, "first")
    names(plane, "elsewhere", node="node-b")
    with reading(access, stream_s=(5, 5)) as reader:
        reader.wait(lambda r: r.watch.is_up)
        begun = reader.watch._version
        for number in range(3):
            plane.annotate("default", "elsewhere", {"weight": str(number + 1)})
        reader.wait(lambda r: r.watch._version != begun)
        assert reader.seen == []
        plane.compact()
        plane.annotate("default", "first", {"memory": "1Gi"})
        reader.wait(lambda r: value(r, "first") == "1Gi")
        assert reader.watch.lists == 1
        assert reader.watch.restarts == 0


def test_a_killed_server_and_a_version_that_the_next_one_does_not_know(
    plane: ControlPlane, access: Access
) -> None:
    names(plane, "first", "second")
    with reading(access) as reader:
        reader.wait(lambda r: len(r.pods) == 2 and r.watch.is_up)
        plane.kill_api()
        reader.wait(lambda r: not r.watch.is_up)
        assert len(reader.pods) == 2
        plane.start_api()
        plane.delete_pod("default", "first")
        names(plane, "third")
        reader.wait(lambda r: r.pods.keys() == {"second", "third"} and r.watch.is_up)
        assert reader.watch.restarts >= 1


def test_gone_as_an_event_of_the_stream(plane: ControlPlane, access: Access) -> None:
    names(plane, "first")
    old = plane.request("GET", PODS)["metadata"]["resourceVersion"]
    for number in range(5):
        plane.annotate("default", "first", {"weight": str(number + 1)})
    plane.compact()
    plane.kill_api()
    plane.start_api()  # its cache begins empty

    async def ask() -> list[bytes]:
        async with Client(access) as client:
            query = {"watch": "true", "resourceVersion": old, "timeoutSeconds": "5"}
            return [line async for line in client.lines(PODS, query, silence_s=20) if line]

    (line,) = asyncio.run(ask())
    assert b'"ERROR"' in line and b'"code":410' in line

    with reading(access) as reader:
        reader.wait(lambda r: r.watch.is_up)
        reader.watch._version = old
        plane.kill_api()
        plane.start_api()
        names(plane, "second")
        reader.wait(lambda r: r.pods.keys() == {"first", "second"} and r.watch.is_up)
        assert reader.watch.lists == 2


def test_gone_as_a_status_between_the_pages_of_a_list(
    plane: ControlPlane, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE", 2)
    names(plane, *(f"p{n}" for n in range(5)))
    seen = []

    async def run() -> int:
        async with Client(access) as client:
            get = client.get

            async def compacting(path: str, query: Any = None) -> Any:
                try:
                    page = await get(path, query)
                except KubeError as error:
                    seen.append(error.status)
                    raise
                if query.get("continue") == "" or len(seen) == 0:
                    await asyncio.to_thread(plane.annotate, "default", "p0", {"weight": "1"})
                    await asyncio.to_thread(plane.compact)
                return page

            monkeypatch.setattr(client, "get", compacting)
            return len((await client.list(PODS)).items)

    assert asyncio.run(run()) == 5
    assert seen == [410]


def test_a_new_token(plane: ControlPlane, access: Access) -> None:
    names(plane, "first")
    with reading(access) as reader:
        reader.wait(lambda r: r.watch.is_up)
        plane.kill_api()
        plane.users = {"tok-new": ("admin", "system:masters")}
        plane.start_api()
        names(plane, "second")
        reader.wait(lambda r: "401" in r.watch.trouble)
        plane.token_file.write_text("tok-new")
        reader.wait(lambda r: r.pods.keys() == {"first", "second"} and r.watch.is_up)


def test_a_thousand_changes(plane: ControlPlane, access: Access) -> None:
    """Of five pods that come and go, with the server killed in between; the end is the server's own list."""
    with reading(access) as reader:
        reader.wait(lambda r: r.watch.is_up)
        for number in range(1000):
            name = f"p{number % 5}"
            if number % 50 < 5:
                if number >= 50:
                    plane.delete_pod("default", name)
                names(plane, name)
            plane.annotate("default", name, {"memory": f"{number + 1}Mi"})
            if number == 600:
                plane.kill_api()
                plane.start_api()
        wanted = {
            one["metadata"]["name"]: one["metadata"]["resourceVersion"]
            for one in plane.request("GET", PODS)["items"]
        }
        reader.wait(lambda r: {n: p["metadata"]["resourceVersion"] for n, p in r.pods.items()} == wanted)
        assert len(wanted) == 5


def test_events_are_taken_and_counted_up(plane: ControlPlane, access: Access) -> None:
    (made,) = names(plane, "train")
    subject = Subject(made["metadata"]["uid"], "default", "train")

    async def run() -> None:
        async with Client(access) as client:
            for _ in range(2):
                sender = PodEvents(client, component="gpulimit", host="node-a")
                sender.post(subject, "QuotaInvalid", "gpulimit.io/memory: x")
                sender.post(subject, "QuotaInvalid", "gpulimit.io/memory: x")
                task = asyncio.create_task(sender.run())
                while not (sender.counts["sent"] or sender.counts["failed"]):
                    await asyncio.sleep(0.01)
                task.cancel()
                assert sender.counts["failed"] == 0

    asyncio.run(run())
    (event,) = plane.request(
        "GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=train"
    )["items"]
    assert (event["reason"], event["type"], event["count"]) == ("QuotaInvalid", "Warning", 2)
    assert event["involvedObject"]["uid"] == subject.uid


RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/gpulimit/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
}


def manifests(*files: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    texts = [(ROOT / "deploy/k8s" / name).read_text() for name in files]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


@pytest.fixture(scope="module")
def namespace(plane: ControlPlane) -> None:
    for one in manifests("namespace.yaml"):
        plane.request("POST", "/api/v1/namespaces", one)


def test_a_daemon_with_the_rights_of_the_manifests(
    plane: ControlPlane,
    namespace: None,
    daemon: Callable[..., Daemon],
    in_pod: Callable[..., Any],
    tmp_path: Path,
) -> None:
    plane.kill_api()
    plane.users |= {"tok-daemon": ("system:serviceaccount:gpulimit:gpulimit", "nobody")}
    plane.start_api()
    for one in manifests("rbac.yaml"):
        plane.request("POST", PATHS[one["kind"]], one)
    token = tmp_path / "token"
    token.write_text("tok-daemon")
    made = plane.create_pod(pod("train", annotations={"memory": "4Gi"}))
    uid = made["metadata"]["uid"]
    status = {"name": "main", "containerID": f"containerd://{container_id(uid, 'main')}", "image": "x"}
    status |= {"imageID": "", "ready": True, "restartCount": 0}
    plane.patch_pod("default", "train", {"status": {"containerStatuses": [status]}}, "/status")
    daemon(
        kubernetes="on",
        node_name="node-a",
        kube_api=plane.url,
        kube_token_file=str(token),
        kube_ca_file=str(plane.ca_file),
        kubelet_url="",
    )
    one = in_pod(made)
    assert one.answer["source"] == "pod"
    for size in (6, 2, 8):
        plane.annotate("default", "train", {"memory": f"{size}Gi"})
        begin = time.monotonic()
        eventually(lambda: one.tell(order="look")["devices"][0]["memory_limit_bytes"] == size * GIB)  # noqa: B023
        assert time.monotonic() - begin < 1
    plane.annotate("default", "train", {"memory": "nonsense"})
    path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=train,reason=QuotaInvalid"
    eventually(lambda: plane.request("GET", path)["items"])
