# SPDX-License-Identifier: Apache-2.0
"""A real daemon, real processes in control groups named as a kubelet names them, and an API server and a
kubelet of our own: every pod has its own quota, whatever is away, restarted, or changed.
"""

from __future__ import annotations

import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.daemon.conftest import Client, Daemon, eventually
from tests.k8s.fake_api import FakeApi, pod, restarted

GIB = 1 << 30
NODE = "node-a"
STATIC = "0123456789abcdef0123456789abcdef"
Start = Callable[..., Daemon]
InPod = Callable[..., Client]


@pytest.fixture
def kubelet() -> Iterator[FakeApi]:
    server = FakeApi()
    yield server
    server.close()


@pytest.fixture
def cluster(daemon: Start, fake_api: FakeApi, kubelet: FakeApi) -> Start:
    """Start daemons that are in the cluster."""

    def start(**options: Any) -> Daemon:
        told = {
            "kubernetes": "on",
            "node_name": NODE,
            "kube_api": fake_api.url,
            "kubelet_url": kubelet.url,
            "linger": "30s",
        }
        return daemon(**told, **options)

    return start


def ready(node: Daemon) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/readyz") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def page(node: Daemon) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics") as answer:
        text: str = answer.read().decode()
        return text


def value(node: Daemon, name: str, **labels: str) -> float | None:
    """Return a sample of the page."""
    for line in page(node).splitlines():
        match = re.fullmatch(rf"gpulimit_{name}(?:{{(.*)}})? (\S+)", line)
        if match and all(f'{key}="{text}"' in (match[1] or "") for key, text in labels.items()):
            return float(match[2])
    return None


def memory(node: Daemon, made: dict[str, Any], container: str = "") -> int | None:
    """Return the memory that a pod's tenant may have; None: not there, or no quota."""
    uid = made["metadata"]["uid"]
    shown = node.tenant(f"pod-{uid}.{container}" if container else f"pod-{uid}")
    if shown is None or not shown["gpus"] or not shown["gpus"][0]["memory_limited"]:
        return None
    return int(shown["gpus"][0]["memory_limit_bytes"])


def reasons(api: FakeApi, name: str) -> dict[str, str]:
    """Return the events of a pod: message by reason."""
    return {
        event["reason"]: event["message"]
        for event in api.events.values()
        if event["involvedObject"]["name"] == name
    }


def show_up(node: Daemon, *clients: Client) -> None:
    gpu = node.state()["gpus"][0]
    for one in clients:
        one.tell(order="device", gpu=gpu["uuid"], card_bytes=gpu["memory_bytes"])


def test_a_pod_has_the_quota_of_its_annotations_and_the_cluster_s_names(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    made = fake_api.put(pod("train", namespace="research", annotations={"memory": "4Gi", "compute": "30%"}))
    node = cluster()
    eventually(lambda: ready(node)[0] == 200)
    one = in_pod(made, environment={"GPULIMIT_MEMORY": "9GiB", "POD_NAME": "liar"})
    assert one.answer["source"] == "pod"
    shown = node.tenant(one.answer["tenant"])
    assert shown is not None
    assert (shown["pod"], shown["source"]) == ("research/train", "pod")
    assert memory(node, made) == 4 * GIB
    assert shown["gpus"][0]["compute_limit_percent"] == 30
    show_up(node, one)
    names = {"namespace": "research", "pod": "train", "container": "main"}
    assert eventually(lambda: value(node, "client_memory_quota_bytes", **names)) == 4 * GIB
    assert value(node, "client_memory_quota_source_info", source="annotation", **names) == 1
    assert value(node, "kube_watch_up") == 1
    assert value(node, "kube_pods") == 1


def test_a_change_takes_effect_within_a_second(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    made = fake_api.put(pod("train", annotations={"memory": "4Gi"}))
    cluster()
    one = in_pod(made)
    for size in (6, 2, 8):
        begin = time.monotonic()
        fake_api.annotate("train", memory=f"{size}Gi")
        eventually(lambda: one.tell(order="look")["devices"][0]["memory_limit_bytes"] == size * GIB)  # noqa: B023
        assert time.monotonic() - begin < 1
    eventually(lambda: reasons(fake_api, "train").get("QuotaChanged") == "now memory 8 GiB, by pod")
    fake_api.annotate("train", memory=None)
    card = one.tell(order="look")["devices"][0]
    eventually(lambda: one.tell(order="look")["devices"][0]["memory_limit_bytes"] > 8 * GIB, within_s=2)
    assert card["uuid"]


def test_a_quota_that_cannot_be_read_is_never_no_quota(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    made = fake_api.put(pod("train", annotations={"memory": "4 gigs"}))
    running = fake_api.put(pod("running", annotations={"memory": "4Gi"}))
    node = cluster()
    one = in_pod(running)
    refused = in_pod(made, expect=422)
    assert "gpulimit.io/memory" in refused.answer["error"]
    assert "4 gigs" in eventually(lambda: reasons(fake_api, "train").get("QuotaInvalid"))
    eventually(lambda: value(node, "kube_quota_invalid", pod="train") == 1)

    fake_api.annotate("running", memory="-1")
    message = eventually(lambda: reasons(fake_api, "running").get("QuotaInvalid"))
    assert "is kept" in message
    assert memory(node, running) == 4 * GIB
    eventually(lambda: value(node, "kube_quota_invalid", pod="running") == 1)
    node.process.send_signal(signal.SIGHUP)  # what is decided again is decided as before
    eventually(lambda: node.state()["counts"].get("config_read"))
    assert one.tell(order="look")["devices"][0]["memory_limit_bytes"] == 4 * GIB

    fake_api.annotate("train", memory="1Gi")
    eventually(lambda: value(node, "kube_quota_invalid", pod="train") is None)
    in_pod(made)
    assert memory(node, made) == GIB


def test_a_pod_s_end_releases_everything_at_once(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    deleted = fake_api.put(pod("deleted", annotations={"memory": "50Gi"}))
    finished = fake_api.put(pod("finished", annotations={"memory": "10Gi"}))
    node = cluster()
    clients = in_pod(deleted), in_pod(finished)
    show_up(node, *clients)
    eventually(lambda: value(node, "client_memory_quota_bytes", pod="deleted"))
    for one in clients:
        one.kill()
    assert memory(node, deleted) == 50 * GIB  # it is there for the pod's next process
    fake_api.delete("deleted")
    fake_api.put({**finished, "status": {**finished["status"], "phase": "Succeeded"}})
    eventually(lambda: not node.state()["tenants"], within_s=3)
    in_pod(fake_api.put(pod("next", annotations={"memory": "60Gi"})))
    eventually(lambda: "deleted" not in page(node), within_s=3)


def test_a_deleted_pod_whose_processes_live_keeps_its_quota(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    made = fake_api.put(pod("stubborn", annotations={"memory": "4Gi"}))
    node = cluster()
    one = in_pod(made)
    show_up(node, one)
    fake_api.delete("stubborn")
    eventually(lambda: value(node, "kube_pods") == 0)
    node.process.send_signal(signal.SIGHUP)
    eventually(lambda: node.state()["counts"].get("config_read"))
    assert memory(node, made) == 4 * GIB
    assert eventually(lambda: value(node, "client_memory_quota_bytes", pod="stubborn")) == 4 * GIB
    one.kill()
    eventually(lambda: not node.state()["tenants"], within_s=5)


def test_a_pod_that_is_not_known_yet_waits(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    made = pod("late", annotations={"memory": "4Gi"}, uid="8f8e6f5c-6b0f-4a57-9d7c-0c7b4f6a2d11")
    node = cluster()
    one = in_pod(made, expect=503)  # the library tries again
    fake_api.put(made)
    eventually(lambda: one.tell(order="register", tenant="", environment={})["status"] == 200)
    assert memory(node, made) == 4 * GIB


def test_containers_with_quotas_of_their_own(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    said = {"memory": "8Gi", "a.memory": "1Gi", "a-name-that-is-longer-than-others.memory": "2Gi"}
    names = ("plain", "a", "other", "a-name-that-is-longer-than-others")
    made = fake_api.put(pod("mixed", annotations=said, containers=names))
    node = cluster()
    clients = {name: in_pod(made, name) for name in names}
    show_up(node, *clients.values())
    tenants = {name: one.answer["tenant"] for name, one in clients.items()}
    assert tenants["plain"] == tenants["other"] == f"pod-{made['metadata']['uid']}"
    assert len(set(tenants.values())) == 3
    assert all(len(name) < 64 for name in tenants.values())
    assert [memory(node, made), memory(node, made, "a")] == [8 * GIB, GIB]
    eventually(lambda: value(node, "client_memory_quota_bytes", pod="mixed", container="a") == GIB)
    assert value(node, "client_memory_quota_bytes", pod="mixed", container=names[3]) == 2 * GIB

    fake_api.annotate("mixed", a__memory="3Gi")
    eventually(lambda: memory(node, made, "a") == 3 * GIB, within_s=2)
    fake_api.annotate("mixed", plain__memory="4Gi")  # it runs already, together with "other"
    assert "plain" in eventually(lambda: reasons(fake_api, "mixed").get("QuotaNeedsRestart"))
    assert in_pod(made, "plain").answer["tenant"] == tenants["plain"]
    fake_api.put(restarted(fake_api.annotate("mixed"), "plain", 1))
    again = eventually(lambda: in_pod(made, "plain", run=1))
    assert again.answer["tenant"].endswith(".plain")
    assert memory(node, made, "plain") == 4 * GIB


def test_a_container_that_only_the_kubelet_knows_yet(
    cluster: Start, fake_api: FakeApi, kubelet: FakeApi, in_pod: InPod
) -> None:
    made = pod("two", annotations={"a.memory": "1Gi", "b.memory": "2Gi"}, containers=("a", "b"))
    fake_api.put({**made, "status": {"phase": "Pending"}})
    node = cluster()
    one = in_pod(made, "a", expect=503)
    kubelet.put({**made, "metadata": {**made["metadata"], "annotations": {}}})  # and it lags behind otherwise
    eventually(lambda: one.tell(order="register", tenant="", environment={})["status"] == 200)
    assert memory(node, made, "a") == GIB


def test_quotas_hold_through_a_restart_of_the_daemon_while_all_else_is_away(
    cluster: Start, fake_api: FakeApi, kubelet: FakeApi, in_pod: InPod
) -> None:
    made = fake_api.put(pod("train", annotations={"memory": "4Gi"}))
    gone = fake_api.put(pod("gone", annotations={"memory": "5Gi"}))
    node = cluster()
    one, other = in_pod(made), in_pod(gone)
    show_up(node, one, other)
    fake_api.stop()
    kubelet.stop()
    node.stop(signal.SIGKILL)
    assert one.tell(order="look")["devices"][0]["memory_limit_bytes"] == 4 * GIB
    again = cluster()
    eventually(lambda: memory(again, made) == 4 * GIB)
    assert "API server" in ready(again)[1]
    assert one.tell(order="register", tenant="", environment={})["status"] == 200
    assert in_pod(made).answer["tenant"] == one.answer["tenant"]  # a fork of a known container
    again.process.send_signal(signal.SIGHUP)
    eventually(lambda: again.state()["counts"].get("config_read"))
    assert memory(again, made) == 4 * GIB
    assert in_pod(pod("unknown"), expect=503).answer["error"]

    fake_api.delete("gone")
    other.kill()
    fake_api.annotate("train", memory="6Gi")
    fake_api.start()
    eventually(lambda: memory(again, made) == 6 * GIB)
    eventually(lambda: memory(again, gone) is None, within_s=3)
    eventually(lambda: ready(again)[0] == 200)


def test_the_kubelet_stands_in_for_the_api_server(
    cluster: Start, fake_api: FakeApi, kubelet: FakeApi, in_pod: InPod
) -> None:
    fake_api.put(pod("old", annotations={"memory": "4Gi"}))
    fake_api.stop()
    made = kubelet.put(pod("new", annotations={"memory": "3Gi"}))
    node = cluster()
    eventually(lambda: ready(node)[0] == 200)
    in_pod(made)
    assert memory(node, made) == 3 * GIB
    eventually(lambda: value(node, "kube_kubelet_fallback") == 1)
    assert value(node, "kube_watch_up") == 0
    # It comes back and knows better: another quota, said while the kubelet was believed.
    fake_api.put({**made, "metadata": {**made["metadata"], "annotations": {"gpulimit.io/memory": "2Gi"}}})
    fake_api.start()
    eventually(lambda: memory(node, made) == 2 * GIB, within_s=40)
    eventually(lambda: value(node, "kube_watch_up") == 1)
    assert value(node, "kube_kubelet_fallback") == 0


def test_a_kubelet_that_knows_no_pods_ends_none(
    cluster: Start, fake_api: FakeApi, kubelet: FakeApi, in_pod: InPod
) -> None:
    made = fake_api.put(pod("train", annotations={"memory": "4Gi"}))
    node = cluster()
    in_pod(made)
    fake_api.stop()
    eventually(lambda: value(node, "kube_kubelet_fallback") == 1, within_s=20)
    assert memory(node, made) == 4 * GIB
    in_pod(made)


def test_a_delete_that_was_missed(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    made = fake_api.put(pod("train", annotations={"memory": "4Gi"}))
    node = cluster()
    one = in_pod(made)
    fake_api.stop()
    one.kill()
    fake_api.delete("train")
    fake_api.compact()
    fake_api.start()
    eventually(lambda: not node.state()["tenants"], within_s=20)


def test_a_static_pod_goes_by_the_hash_of_its_file(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    made = pod("static", annotations={"memory": "4Gi"})
    made["metadata"]["annotations"]["kubernetes.io/config.hash"] = STATIC
    made["metadata"]["annotations"]["kubernetes.io/config.mirror"] = STATIC
    fake_api.put(made)
    node = cluster()
    one = in_pod(made)
    assert one.answer["tenant"] == f"pod-{STATIC}"
    shown = node.tenant(f"pod-{STATIC}")
    assert shown is not None and shown["pod"] == "default/static"
    assert shown["quota"]["memory"] == f"*={4 * GIB}B"


def test_an_init_container_s_memory_is_the_others_afterwards(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    """Init 60 GiB, then sidecar 30 and app 40 on a card of 80: never more than 70 at a time."""
    said = {"init.memory": "60Gi", "side.memory": "30Gi", "app.memory": "40Gi"}
    made = fake_api.put(pod("phases", annotations=said, init=("init", "side"), containers=("app",)))
    node = cluster()
    in_pod(made, "init").kill()
    in_pod(made, "side")
    in_pod(made, "app")
    assert [memory(node, made, name) for name in ("side", "app")] == [30 * GIB, 40 * GIB]
    other = fake_api.put(pod("other", annotations={"memory": "20Gi"}))
    assert "does not fit" in in_pod(other, expect=409).answer["error"]


def test_a_quota_that_does_not_fit_waits_until_it_does(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    made = fake_api.put(pod("grows", annotations={"memory": "30Gi"}))
    other = fake_api.put(pod("other", annotations={"memory": "40Gi"}))
    node = cluster()
    clients = in_pod(made), in_pod(other)
    show_up(node, *clients)
    fake_api.annotate("grows", memory="60Gi")
    assert "does not fit" in eventually(lambda: reasons(fake_api, "grows").get("QuotaDoesNotFit"))
    assert memory(node, made) == 30 * GIB
    clients[1].kill()
    fake_api.delete("other")
    eventually(lambda: memory(node, made) == 60 * GIB, within_s=5)


def test_resources_of_hami(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    made = pod("moved")
    made["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    }
    fake_api.put(made)
    node = cluster()
    in_pod(made)
    assert memory(node, made) == 3000 << 20


def test_many_pods_at_once_each_get_their_own(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    """Bound together, registered in another order, and one restarts while another comes at last."""
    made = [fake_api.put(pod(f"p{n}", annotations={"memory": f"{100 + n}Mi"})) for n in range(12)]
    node = cluster()
    clients = {n: in_pod(made[n]) for n in (7, 3, 11, 0, 5, 1, 9, 2, 10, 4, 8)}
    clients[7].kill()
    clients[6] = in_pod(made[6])
    again = in_pod(fake_api.put(restarted(made[7], "main", 1)), run=1)
    assert again.answer["tenant"] == clients[7].answer["tenant"]
    assert [memory(node, one) for one in made] == [(100 + n) << 20 for n in range(12)]


def test_without_an_address_the_daemon_says_so(daemon: Start) -> None:
    node = daemon(kubernetes="on", is_awaited=False)
    assert node.process.wait(20) == 2
    assert "KUBERNETES_SERVICE_HOST" in node.log.read_text()


def test_what_changed_while_the_daemon_was_away(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    changed = fake_api.put(pod("changed", annotations={"memory": "4Gi"}))
    gone = fake_api.put(pod("gone", annotations={"memory": "5Gi"}))
    node = cluster()
    one, other = in_pod(changed), in_pod(gone)
    node.stop(signal.SIGKILL)
    fake_api.annotate("changed", memory="2Gi")
    fake_api.delete("gone")
    again = cluster()
    eventually(lambda: memory(again, changed) == 2 * GIB)
    assert one.tell(order="look")["devices"][0]["memory_limit_bytes"] == 2 * GIB
    assert memory(again, gone) == 5 * GIB  # its process lives
    other.kill()
    eventually(lambda: again.tenant(f"pod-{gone['metadata']['uid']}") is None, within_s=5)


def test_a_pod_that_asks_for_too_much_is_told_so(cluster: Start, fake_api: FakeApi, in_pod: InPod) -> None:
    made = fake_api.put(pod("greedy", annotations={"memory": "1Gi"}))
    node = cluster(nvml_interval="100ms")
    one = in_pod(made)
    show_up(node, one)
    eventually(lambda: value(node, "client_memory_quota_bytes", pod="greedy"))
    one.tell(order="refuse")
    text = eventually(lambda: reasons(fake_api, "greedy").get("MemoryRefused"))
    assert text == "asked for more than its 1 GiB of memory on GPU 0, and was refused"
    one.tell(order="refuse")
    time.sleep(1)
    assert len(fake_api.events) == 1


def test_a_pod_that_the_watch_never_named(
    cluster: Start, fake_api: FakeApi, kubelet: FakeApi, in_pod: InPod
) -> None:
    node = cluster()
    eventually(lambda: value(node, "kube_watch_up") == 1)
    fake_api.is_deaf = True
    made = fake_api.put(pod("untold", annotations={"memory": "4Gi"}))
    kubelet.put(made)
    in_pod(made)
    assert memory(node, made) == 4 * GIB
    fake_api.delete("untold")  # nobody tells that either
    kubelet.delete("untold")
    other = kubelet.put(fake_api.put(pod("other", annotations={"memory": "1Gi"})))
    in_pod(other)  # brings another list
    eventually(lambda: value(node, "kube_pods") == 1)


def test_containers_that_are_divided_otherwise_while_they_run_are_never_without_a_quota(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    together = fake_api.put(pod("together", annotations={"memory": "4Gi"}, containers=("a", "b")))
    said = {"a.memory": "1Gi", "b.memory": "2Gi"}
    apart = fake_api.put(pod("apart", annotations=said, containers=("a", "b")))
    node = cluster()
    in_pod(together, "a")
    in_pod(together, "b")
    in_pod(apart, "a")
    fake_api.put({**together, "metadata": {**together["metadata"], "annotations": named(**said)}})
    fake_api.put({**apart, "metadata": {**apart["metadata"], "annotations": named(memory="3Gi")}})
    eventually(lambda: "QuotaNeedsRestart" in reasons(fake_api, "together"))
    assert memory(node, together) == 4 * GIB
    eventually(lambda: memory(node, apart, "a") == 3 * GIB)


def named(**said: str) -> dict[str, str]:
    return {f"gpulimit.io/{key}": text for key, text in said.items()}


def test_an_annotation_that_was_removed_while_the_daemon_was_away(
    cluster: Start, fake_api: FakeApi, in_pod: InPod
) -> None:
    made = fake_api.put(pod("train", annotations={"memory": "4Gi"}))
    node = cluster()
    in_pod(made)
    node.stop(signal.SIGKILL)
    fake_api.annotate("train", memory=None)
    again = cluster()
    shown = eventually(lambda: again.tenant(f"pod-{made['metadata']['uid']}"))
    eventually(lambda: memory(again, made) is None)
    assert shown["workers"] == []


def test_a_pod_that_names_more_than_any_card_has_is_told_so(cluster: Start, fake_api: FakeApi) -> None:
    fake_api.put(pod("early", annotations={"a.memory": "50Gi", "b.memory": "50Gi"}, containers=("a", "b")))
    cluster()
    assert "102400 MiB" in eventually(lambda: reasons(fake_api, "early").get("QuotaLargerThanCard"))
    one_by_one = {"first.memory": "60Gi", "app.memory": "60Gi"}
    fake_api.put(pod("fits", annotations=one_by_one, init=("first",), containers=("app",)))
    fake_api.put(pod("late", annotations={"memory": "81Gi"}))
    eventually(lambda: reasons(fake_api, "late").get("QuotaLargerThanCard"))
    assert reasons(fake_api, "fits") == {}
