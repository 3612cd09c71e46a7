# SPDX-License-Identifier: Apache-2.0
"""A kubelet that comes late, a daemon that stands still, and large answers of the pod-resources API."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("grpc", reason="needs the extra k8s")

from google.protobuf.message import DecodeError

from hypervisor.deviceplugin import api_v1beta1 as messages
from hypervisor.deviceplugin import pod_resources_v1 as pod_messages
from hypervisor.deviceplugin.pod_resources import PodResources
from hypervisor.pods.pod import Pod
from tests.daemon.conftest import eventually
from tests.plugin.kubelet import Kubelet
from tests.plugin.pod_api import OURS, PodApi

STOPPED_S = 9.0


def test_a_kubelet_that_comes_late_is_told_at_once(node, kubelet: Kubelet) -> None:
    """The pauses between tries have grown to eight seconds by then."""
    kubelet.stop()
    daemon = node(is_awaited=False)
    eventually(lambda: daemon.process.poll() is None and "is not there" in daemon.log.read_text())
    time.sleep(8.0)
    begin = time.monotonic()
    kubelet.start()
    kubelet.wait_for(kubelet.healthy)
    assert time.monotonic() - begin < 4.0


def test_a_kubelet_that_refuses_at_first_is_told_again_when_it_restarts(node, kubelet: Kubelet) -> None:
    kubelet.refusal = "not yet"
    daemon = node(is_awaited=False)
    eventually(lambda: "the kubelet refuses" in daemon.log.read_text())
    time.sleep(7.0)
    kubelet.refusal = ""
    begin = time.monotonic()
    kubelet.restart()
    kubelet.wait_for(kubelet.healthy)
    assert time.monotonic() - begin < 4.0


@pytest.mark.parametrize("which", ["daemon", "daemon and probe"])
def test_allocations_that_wait_for_a_daemon_that_stood_still_are_served(
    node, kubelet: Kubelet, which: str
) -> None:
    daemon = node()
    devices = kubelet.healthy()
    plugin = kubelet.plugins[OURS]
    pid = daemon.process.pid
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
        probes = [int(word) for word in file.read().split()]
    stopped = [pid, *(probes if which != "daemon" else [])]
    for one in stopped:
        os.kill(one, signal.SIGSTOP)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(kubelet.allocate, device) for device in devices[:4]]
        time.sleep(STOPPED_S)
        for one in reversed(stopped):
            os.kill(one, signal.SIGCONT)
        grants = [one.result(timeout=15) for one in waiting]
    assert all(grant.mounts for grant in grants)
    time.sleep(2.0)
    with kubelet.changed:
        assert set(plugin.listings) == {len(devices)}, "no card was withheld"
        assert not plugin.has_ended.is_set()


def test_an_allocation_of_a_bad_card_is_refused_in_the_end(node, kubelet: Kubelet, xid) -> None:
    import grpc

    node()
    device = kubelet.healthy()[0]
    xid(0, 79)
    kubelet.wait_for(lambda: device not in kubelet.healthy())
    with pytest.raises(grpc.RpcError, match="does not answer well"):
        kubelet.allocate(device)


# ---- pod resources ----


def answer_of(pods: int) -> bytes:
    """Return an answer to List of so many pods."""
    devices = pod_messages.new(
        "ContainerDevices", resource_name=OURS, device_ids=[f"GPU-1::{n}" for n in range(8)]
    )
    padding = [
        pod_messages.new("ContainerDevices", resource_name="other/device", device_ids=["x" * 60] * 4)
        for _ in range(8)
    ]
    one = pod_messages.new("ContainerResources", name="main", devices=[devices, *padding])
    made = [
        pod_messages.new("PodResources", name=f"p{n}", namespace="n", containers=[one]) for n in range(pods)
    ]
    return bytes(pod_messages.new("ListPodResourcesResponse", pod_resources=made).SerializeToString())


def test_a_list_is_cut_into_its_pods() -> None:
    raw = answer_of(5)
    read = [pod_messages.CLASSES["PodResources"].FromString(part) for part in pod_messages.items_in(raw)]
    assert [pod.name for pod in read] == [f"p{n}" for n in range(5)]
    unknown = bytes([3 << 3, 0x96, 0x01, 4 << 3 | 1, *range(8), 5 << 3 | 5, *range(4), 6 << 3 | 2, 2, 0, 0])
    assert len(list(pod_messages.items_in(unknown + raw + unknown))) == 5, "of later versions"
    assert list(pod_messages.items_in(b"")) == []


@pytest.mark.parametrize(
    "raw", [b"\x0a", b"\x0a\xff\xff", b"\x0a\x05abc", b"\xff" * 12, b"\x0b\x0c", b"\x00\x00", b"\x09abc"]
)
def test_a_list_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        list(pod_messages.items_in(raw))


def test_a_large_answer_is_read_beside_the_loop(run_dir, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = answer_of(4000)
    assert len(raw) > 8 << 20
    api = PodApi(run_dir / "kubelet")
    api.pods["n", "p0"] = {"main": ["GPU-1::0"]}
    api.start()
    monkeypatch.setattr(api, "_call", lambda *_: raw)
    threads: set[int] = set()
    client = PodResources(
        run_dir / "kubelet", OURS, lambda *_: None, lambda: [Pod("uid-0", "uid-0", "n", "p0")], period_s=0.2
    )
    read = client._devices

    def noted(pod: object) -> dict[str, tuple[str, ...]]:
        threads.add(threading.get_ident())
        return read(pod)

    monkeypatch.setattr(client, "_devices", noted)

    async def script() -> None:
        task = asyncio.create_task(client.run())
        async with asyncio.timeout(30):
            while not client.told:
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(script())
    api.stop()
    assert len(client.told["uid-0"]["main"]) == 8
    assert threads and threading.get_ident() not in threads
    assert messages.HEALTHY
