# SPDX-License-Identifier: Apache-2.0
"""Which pods have which devices, asked of kubelets of several versions over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import eventually
from tests.k8s.fake_api import FakeApi
from tests.k8s.fake_api import pod as object_of
from tests.plugin.conftest import tenant_of
from tests.plugin.kubelet import RECORD, Kubelet
from tests.plugin.test_device_plugin import page

pytest.importorskip("grpc", reason="needs the extra k8s")

from hypervisor.deviceplugin import pod_resources
from hypervisor.deviceplugin.pod_resources import PodResources
from hypervisor.pods.pod import Pod
from tests.plugin.pod_api import OURS, PodApi

TRAIN, OTHER = Pod("uid-1", "uid-1", "ml", "train"), Pod("uid-2", "uid-2", "ml", "other")
GIVEN = {"main": ["GPU-1::1", "GPU-1::0"], "side": []}


@pytest.fixture
def api(run_dir: Path) -> Iterator[PodApi]:
    made = PodApi(run_dir / "kubelet")
    made.pods["ml", "train"] = GIVEN
    made.pods["ml", "other"] = {"main": []}
    made.known = [f"GPU-1::{number}" for number in range(10)]
    yield made
    made.stop()


class Asking:
    """A client that runs, and what it has noted."""

    def __init__(self, folder: Path) -> None:
        self.pods = [TRAIN, OTHER]
        self.notes: list[str] = []
        self.client = PodResources(
            folder, OURS, lambda _, text, __: self.notes.append(text), lambda: self.pods, period_s=0.3
        )

    async def until(self, check: Callable[[PodResources], object], within_s: float = 10.0) -> None:
        async with asyncio.timeout(within_s):
            while not check(self.client):
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def asking(folder: Path) -> AsyncIterator[Asking]:
    made = Asking(folder)
    task = asyncio.create_task(made.client.run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def run(api: PodApi, script: Callable[[Asking], Any]) -> None:
    async def whole() -> None:
        async with asking(api.socket.parents[1]) as made:
            await script(made)

    asyncio.run(whole())


def test_all_pods_are_asked_for_and_the_cards_slices(api: PodApi) -> None:
    api.start()

    async def script(made: Asking) -> None:
        await made.until(lambda c: c.is_up and c.allocatable)
        assert made.client.told == {
            "uid-1": {"main": ("GPU-1::0", "GPU-1::1"), "side": ()},
            "uid-2": {"main": ()},
        }
        assert made.client.allocatable == {"GPU-1": 10}
        assert made.client.knows("uid-1") and not made.client.knows("uid-2"), "it may have got some since"

    run(api, script)
    assert "Get" not in api.calls


def test_a_pod_that_waits_is_asked_for_by_name(api: PodApi) -> None:
    api.start()

    async def script(made: Asking) -> None:
        await made.until(lambda c: c.is_up)
        api.pods["ml", "other"] = {"main": ["GPU-1::7"]}
        lists = api.calls.count("List")
        made.client.want("uid-2")
        await made.until(lambda c: c.knows("uid-2"))
        assert made.client.told["uid-2"] == {"main": ("GPU-1::7",)}
        assert made.client.told["uid-1"]["main"], "the others' stay"
        assert "Get" in api.calls and api.calls.count("List") <= lists + 1

    run(api, script)


@pytest.mark.parametrize("manners", ["unimplemented", "disabled"])
def test_a_kubelet_without_get_is_asked_for_all(api: PodApi, manners: str) -> None:
    api.manners = {"Get": manners, "GetAllocatableResources": manners}
    api.start()

    async def script(made: Asking) -> None:
        for _ in range(3):
            api.pods["ml", "other"] = {"main": []}
            await made.until(lambda c: c.is_up and not c.knows("uid-2"))
            made.client.want("uid-2")
            await made.until(lambda c: c.knows("uid-2"))
            made.client._sure.clear()
        assert made.client.is_up and made.client.allocatable is None

    run(api, script)
    assert api.calls.count("Get") == (1 if manners == "disabled" else 0)
    assert api.calls.count("GetAllocatableResources") <= 1


def test_a_pod_that_the_kubelet_does_not_know_is_not_told(api: PodApi) -> None:
    api.start()

    async def script(made: Asking) -> None:
        made.pods.append(Pod("uid-3", "uid-3", "ml", "new"))
        await made.until(lambda c: c.is_up)
        made.client.want("uid-3")
        await made.until(lambda _: "Get" in api.calls)
        await asyncio.sleep(0.5)
        assert made.client.is_up and not made.client.knows("uid-3")
        api.pods["ml", "new"] = {"main": ["GPU-1::3"]}
        made.client.want("uid-3")
        await made.until(lambda c: c.knows("uid-3"))

    run(api, script)


@pytest.mark.parametrize("call", ["List", "Get"])
def test_a_name_that_goes_over_to_another_pod_meanwhile_is_not_believed(api: PodApi, call: str) -> None:
    api.start()

    async def script(made: Asking) -> None:
        await made.until(lambda c: c.is_up)
        made.client.told = {}
        # A pod of the same name takes its place while the answer is on its way.
        api.before_answer = lambda: made.pods.__setitem__(0, Pod("uid-9", "uid-9", "ml", "train"))
        if call == "Get":
            made.client.want("uid-1")
        calls = api.calls.count(call)
        await made.until(lambda _: api.calls.count(call) > calls)
        api.before_answer = None
        assert "uid-1" not in made.client.told
        await made.until(lambda c: c.knows("uid-9"))

    run(api, script)


def test_a_slow_kubelet_holds_nobody_up(api: PodApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_resources, "ANSWER_S", 0.3)
    api.manners = {"List": "slow"}
    api.start()

    async def script(made: Asking) -> None:
        await made.until(lambda c: "DEADLINE_EXCEEDED" in c.trouble)
        api.manners = {}
        await made.until(lambda c: c.is_up)

    run(api, script)


@pytest.mark.parametrize("manners", ["garbage", "limited"])
def test_an_answer_that_is_none_changes_nothing(api: PodApi, manners: str) -> None:
    api.start()

    async def script(made: Asking) -> None:
        await made.until(lambda c: c.knows("uid-1"))
        api.manners = dict.fromkeys(("List", "Get"), manners)
        made.client.want("uid-1")
        await made.until(lambda c: not c.is_up)
        assert made.client.told["uid-1"]["main"] == ("GPU-1::0", "GPU-1::1")
        api.manners = {}
        await made.until(lambda c: c.is_up)

    run(api, script)


def test_what_is_no_kubelet_at_the_socket(api: PodApi) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(api.socket))

    async def script(made: Asking) -> None:
        await made.until(lambda c: "UNAVAILABLE" in c.trouble)
        listener.close()
        api.start()
        await made.until(lambda c: c.is_up)

    run(api, script)


def test_a_kubelet_that_comes_and_goes(api: PodApi) -> None:
    async def script(made: Asking) -> None:
        await made.until(lambda c: c.trouble == pod_resources.NOT_THERE)
        assert made.notes == [], "kubelets may have it switched off"
        api.start()
        await made.until(lambda c: c.is_up)
        api.stop()
        await made.until(lambda c: not c.is_up)
        api.start()
        await made.until(lambda c: c.is_up)

    run(api, script)


# ---- in a daemon ----


@pytest.fixture
def cluster(fake_api: FakeApi) -> FakeApi:
    return fake_api


@pytest.fixture
def fake_api() -> Iterator[FakeApi]:
    server = FakeApi()
    yield server
    server.close()


def told(pod: Any, cluster: FakeApi, api: PodApi, devices: list[str]) -> None:
    """Let the cluster and the kubelet know a pod of this test."""
    cluster.put(object_of(f"pod-{pod.uid[:8]}", uid=pod.uid))
    api.pods["default", f"pod-{pod.uid[:8]}"] = {"main": devices}


def spoil(kubelet: Kubelet) -> None:
    (kubelet.folder / RECORD).write_text('{"Data": {"something": "new"}}')


@pytest.mark.parametrize("get", ["", "disabled"])
def test_a_record_that_cannot_be_read_is_not_needed(
    node, kubelet: Kubelet, pod, load, api: PodApi, cluster: FakeApi, get: str
) -> None:
    api.manners = {"Get": get}
    api.start()
    spoil(kubelet)
    daemon = node(kubernetes="on", node_name="node-a", kube_api=cluster.url)
    one = pod()
    devices = kubelet.healthy()
    told(one, cluster, api, devices[:3])
    assert kubelet.allocate(devices[3]), "cards are offered"
    load(one, "--idle", "--seconds", "30")
    tenant = tenant_of(daemon, one)
    assert (tenant["source"], tenant["gpus"][0]["compute_request_percent"]) == ("slices", 30)


def test_a_pod_without_slices_has_none_although_the_record_is_silent(
    node, kubelet: Kubelet, pod, load, api: PodApi, cluster: FakeApi
) -> None:
    api.start()
    spoil(kubelet)
    daemon = node(kubernetes="on", node_name="node-a", kube_api=cluster.url)
    one = pod()
    told(one, cluster, api, [])
    load(one, "--idle", "--seconds", "30")
    assert tenant_of(daemon, one)["source"] != "slices"


def test_neither_kubelet_nor_record_takes_nobody_in(
    node, kubelet: Kubelet, pod, load, cluster: FakeApi
) -> None:
    daemon = node(kubernetes="on", node_name="node-a", kube_api=cluster.url)
    one = pod()
    cluster.put(object_of("one", uid=one.uid))
    spoil(kubelet)
    process = load(one, "--seconds", "0.2", GPULIMIT_WAIT="1")
    assert process.wait(30) != 0
    assert daemon.tenant(f"pod-{one.uid}") is None
    assert any("pod resources: its socket is not there" in e["text"] for e in daemon.state()["events"])


def test_record_and_answers_say_the_same_of_a_pod(
    node, kubelet: Kubelet, pod, load, api: PodApi, cluster: FakeApi
) -> None:
    api.start()
    daemon = node(kubernetes="on", node_name="node-a", kube_api=cluster.url)
    one, plain = pod(), pod()
    devices = kubelet.healthy()
    api.known = devices
    told(one, cluster, api, devices[:2])
    kubelet.allocate(*devices[:2], pod=one.uid)
    kubelet.allocate(devices[2], pod=plain.uid)  # the cluster has not named it yet
    load(one, "--idle", "--seconds", "30")
    assert tenant_of(daemon, one)["gpus"][0]["compute_request_percent"] == 20

    def shown() -> bool:
        text = page(daemon, "/metrics")[1]
        return (
            'state="allotted"} 3' in text
            and 'state="allocatable"} 10' in text
            and "gpulimit_device_plugin_pod_resources_up 1" in text
        )

    eventually(shown, within_s=20)
