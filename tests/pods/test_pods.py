# SPDX-License-Identifier: Apache-2.0
"""Pods read from the cluster's objects, and kept."""

from __future__ import annotations

from typing import Any

import pytest

from hypervisor.pods.pod import Container, Pod, Pods, pod_of

UID = "8f8e6f5c-6b0f-4a57-9d7c-0c7b4f6a2d11"
OTHER = UID[:-1] + "2"
HASH = "0123456789abcdef0123456789abcdef"
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def item(name: str = "p", uid: str = UID, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid}, "spec": {}, "status": {}, **more}


def test_a_pod_is_read() -> None:
    found = pod_of(
        {
            "metadata": {"name": "p", "namespace": "ns", "uid": UID, "annotations": {"x": "y"}},
            "spec": {
                "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
                "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpumem": 3000}}}],
            },
            "status": {
                "phase": "Running",
                "containerStatuses": [
                    {
                        "name": "main",
                        "containerID": f"containerd://{A}",
                        "lastState": {"terminated": {"containerID": f"containerd://{B}"}},
                    }
                ],
                "initContainerStatuses": [{"name": "i", "containerID": f"cri-o://{C}"}],
            },
        }
    )
    assert found == Pod(
        UID,
        UID,
        "ns",
        "p",
        {"x": "y"},
        (
            Container("i", frozenset({C}), is_init=True),
            Container("s", is_init=True, is_sidecar=True),
            Container("main", frozenset({A, B}), {"nvidia.com/gpumem": "3000"}),
        ),
    )
    assert not found.has_ended
    assert pod_of(item(status={"phase": "Failed"})).has_ended


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"metadata": None},
        {"metadata": {"name": "p"}},
        {"metadata": {"uid": UID, "name": 3}},
    ],
)
def test_a_pod_without_name_or_uid_is_none(nonsense: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        pod_of(nonsense)


def test_whatever_else_is_wrong_is_as_if_it_were_not_there() -> None:
    found = pod_of(
        item(
            spec={"containers": [None, {"name": 7}, {"name": "a", "resources": []}]},
            status={"containerStatuses": [{"name": "a", "containerID": "docker://short", "state": []}, 4]},
        )
    )
    assert found.containers == (Container("a"),)
    assert pod_of({"metadata": {"name": "p", "uid": UID}, "spec": [], "status": 1}).containers == ()


@pytest.mark.parametrize("key", ["kubernetes.io/config.mirror", "kubernetes.io/config.hash"])
def test_a_static_pod_goes_by_the_hash_of_its_file(key: str) -> None:
    made = item()
    made["metadata"]["annotations"] = {key: HASH}
    assert (pod_of(made).uid, pod_of(made).object_uid) == (HASH, UID)
    made["metadata"]["annotations"] = {key: OTHER}  # another pod's UID is no hash
    assert pod_of(made).uid == UID


def pod(name: str, uid: str, *containers: str, object_uid: str = "") -> Pod:
    made = tuple(Container(f"c{n}", frozenset({c})) for n, c in enumerate(containers))
    return Pod(uid, object_uid or uid, "ns", name, {}, made)


def test_a_list_tells_what_is_new_and_what_has_gone() -> None:
    pods = Pods()
    one, two = pod("one", UID, A), pod("two", OTHER, B)
    assert pods.replace([one, two]).put == (one, two)
    assert pods.replace([one, two]) == pods.replace([two, one])
    changed = pod("two", OTHER, C)
    news = pods.replace([changed])
    assert (news.put, news.gone) == ((changed,), (one,))
    assert [p.name for p in pods] == ["two"]
    assert pods.replace([one], is_whole=False).gone == ()
    assert len(pods) == 2


def test_containers_are_found_by_id_in_their_own_pod_only() -> None:
    pods = Pods()
    pods.put(pod("one", UID, A))
    pods.put(pod("two", OTHER, B, A))  # claims another's container
    assert pods.container(UID, A) == "c0"
    assert pods.container(OTHER, B) == "c0"
    assert pods.container(OTHER, A) is None
    assert pods.container(UID, None) is None
    pods.put(pod("one", UID))
    assert pods.container(UID, A) is None


def test_a_pod_cannot_take_another_s_uid() -> None:
    pods = Pods()
    static = pod("static", HASH, object_uid=UID)
    pods.put(static)
    thief = pod("thief", HASH, object_uid=OTHER)
    assert pods.put(thief).put == ()
    assert pods.get(HASH) == static
    pods.remove(thief)
    assert pods.get(HASH) == static
    again = pod("static", HASH, object_uid=OTHER)  # the mirror was deleted and made again
    assert pods.put(again).put == (again,)
    assert pods.remove(static).gone == ()
    assert pods.remove(again).gone == (again,)
