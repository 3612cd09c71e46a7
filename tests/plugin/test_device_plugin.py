# SPDX-License-Identifier: Apache-2.0
"""The device plugin of a real daemon, asked by a kubelet over gRPC."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from hypervisor.deviceplugin import api_v1beta1 as messages
from tests.conftest import remove_segments
from tests.daemon.conftest import eventually
from tests.plugin.conftest import tenant_of
from tests.plugin.kubelet import Kubelet, Plugin

GIB = 1 << 30
TWO_CARDS = {"GPULIMIT_SIM_PROFILE": "two-h100"}
LIBRARY = "/usr/lib/gpulimit/libgpulimit.so"


def ready(node: Any) -> tuple[int, str]:
    return page(node, "/readyz")


def page(node: Any, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", node.metrics_port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def two_cards(kubelet: Kubelet) -> tuple[list[str], list[str]]:
    by_card: dict[str, list[str]] = {}
    for device in kubelet.healthy():
        by_card.setdefault(device.partition("::")[0], []).append(device)
    first, second = (sorted(devices) for _, devices in sorted(by_card.items()))
    return first, second


def test_cards_are_offered_in_slices(node, kubelet: Kubelet) -> None:
    daemon = node(slices_per_gpu="4", env=TWO_CARDS)
    kubelet.wait_for(lambda: len(kubelet.healthy()) == 8)
    uuids = [gpu["uuid"] for gpu in daemon.state()["gpus"]]
    assert sorted(kubelet.healthy()) == sorted(f"{uuid}::{n}" for uuid in uuids for n in range(4))
    assert all(len(device) <= 63 for device in kubelet.healthy())
    assert kubelet.plugins["gpulimit.io/gpu"].listings[0] == 8, "no moment without devices"
    options = kubelet.call("GetDevicePluginOptions", messages.new("Empty"))
    assert options.get_preferred_allocation_available and not options.pre_start_required
    eventually(lambda: ready(daemon)[0] == 200)


def test_a_container_gets_its_card_the_library_and_the_socket(node, kubelet: Kubelet, run_dir: Path) -> None:
    node()
    device = kubelet.healthy()[0]
    grant = kubelet.allocate(device)
    mounts = {m.container_path: m for m in grant.mounts}
    assert grant.envs["GPULIMIT_SOCKET"] == str(run_dir / "daemon.sock")
    assert grant.envs["CUDA_VISIBLE_DEVICES"] == device.partition("::")[0]
    assert mounts[LIBRARY].read_only and Path(mounts[LIBRARY].host_path).stat().st_mode & 0o777 == 0o644
    preload = mounts["/etc/ld.so.preload"]
    assert preload.read_only and Path(preload.host_path).read_text() == f"{LIBRARY}\n"
    assert mounts[str(run_dir)].read_only
    said = mounts["/usr/lib/gpulimit/daemon"]
    assert said.read_only and Path(said.host_path).read_text() == f"{run_dir / 'daemon.sock'}\n"
    writable = {m.container_path for m in grant.mounts if not m.read_only}
    assert writable == {"/run/gpulimit-sim"}, "only the simulated machine may be written"


def test_images_preload_files_are_merged_by_a_hook_where_that_is_wanted(
    node, kubelet: Kubelet, run_dir: Path
) -> None:
    folder = run_dir / "cdi"
    folder.mkdir()
    node(merge_preload="on", cdi_dir=str(folder))
    grant = kubelet.allocate(kubelet.healthy()[0])
    (name,) = [device.name for device in grant.cdi_devices]
    spec = json.loads((folder / "gpulimit-preload.json").read_text())
    (device,) = spec["devices"]
    assert name == f"{spec['kind']}={device['name']}"
    (hook,) = device["containerEdits"]["hooks"]
    assert Path(hook["path"]).is_relative_to(run_dir / "lib") and os.access(hook["path"], os.X_OK)
    assert "/etc/ld.so.preload" in {m.container_path for m in grant.mounts}, "in force without the hook, too"


def test_nothing_is_offered_while_the_hook_cannot_be_named(node, kubelet: Kubelet, run_dir: Path) -> None:
    daemon = node(merge_preload="on", cdi_dir=str(run_dir / "none"), is_awaited=False)
    eventually(lambda: any(str(run_dir / "none") in e["text"] for e in daemon.state()["events"]))
    assert not kubelet.healthy() and "device_plugin" in ready(daemon)[1]


def test_allocate_gives_the_same_whatever_came_before(node, kubelet: Kubelet) -> None:
    node(env=TWO_CARDS)
    kubelet.wait_for(lambda: len(kubelet.healthy()) == 20)
    first, second = two_cards(kubelet)
    wanted = [first[:3], second[:1], first[3:4], second[5:9], [*first[5:6], *second[2:3]]] * 4
    random.Random(7).shuffle(wanted)  # noqa: S311
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        grants = list(pool.map(lambda devices: kubelet.allocate(*devices), wanted))
    for devices, grant in zip(wanted, grants, strict=True):
        cards = sorted({device.partition("::")[0] for device in devices})
        assert grant.envs["CUDA_VISIBLE_DEVICES"] == ",".join(cards)


def test_what_is_not_offered_is_not_given(node, kubelet: Kubelet) -> None:
    node()
    card = kubelet.healthy()[0].partition("::")[0]
    for devices in (["nonsense"], ["GPU-none::1"], [], [f"{card}::10"], [f"{card}::x"], [f"{card}::1", ""]):
        with pytest.raises(grpc.RpcError) as refused:
            kubelet.allocate(*devices)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT, devices


def test_preferred_allocation_packs_or_spreads(node, kubelet: Kubelet) -> None:
    node(env=TWO_CARDS)
    kubelet.wait_for(lambda: len(kubelet.healthy()) == 20)
    first, second = two_cards(kubelet)
    assert set(kubelet.preferred([*first[:4], *second], 3)) <= set(first)
    assert set(kubelet.preferred([*first[:2], *second], 3)) <= set(second)
    assert set(kubelet.preferred([*first[:4], *second], 3, must=second[:1])) <= set(second)
    with pytest.raises(grpc.RpcError):
        kubelet.preferred(first[:2], 3)


def test_spread_takes_the_card_with_the_most_room(node, kubelet: Kubelet) -> None:
    node(slice_placement="spread", env=TWO_CARDS)
    kubelet.wait_for(lambda: len(kubelet.healthy()) == 20)
    first, second = two_cards(kubelet)
    assert set(kubelet.preferred([*first[:4], *second], 3)) <= set(second)


def test_a_card_that_fails_is_withheld_and_comes_back(node, kubelet: Kubelet, xid) -> None:
    daemon = node(env=TWO_CARDS, nvml_interval="200ms")
    kubelet.wait_for(lambda: len(kubelet.healthy()) == 20)
    first, second = two_cards(kubelet)
    index = next(g["index"] for g in daemon.state()["gpus"] if first[0].startswith(g["uuid"]))
    xid(index, 79)
    kubelet.wait_for(lambda: sorted(kubelet.healthy()) == second)
    with pytest.raises(grpc.RpcError):
        kubelet.allocate(first[0])
    assert kubelet.allocate(second[0])
    xid(index, 0)
    kubelet.wait_for(lambda: len(kubelet.healthy()) == 20)
    assert kubelet.registrations == 1, "all of it on the one stream"


# ---- the kubelet comes and goes ----


def test_a_kubelet_that_restarts_is_told_again(node, kubelet: Kubelet) -> None:
    daemon = node()
    for _ in range(2):
        before = kubelet.registrations
        kubelet.restart()
        kubelet.wait_for(lambda n=before: kubelet.registrations == n + 1 and len(kubelet.healthy()) == 10)
        assert kubelet.allocate(kubelet.healthy()[0])
    eventually(lambda: ready(daemon)[0] == 200)


def test_a_daemon_that_starts_first_waits_for_the_kubelet(node, kubelet: Kubelet) -> None:
    kubelet.stop()
    daemon = node(is_awaited=False)
    status, text = ready(daemon)
    assert status == 503 and "device_plugin" in text
    kubelet.start()
    kubelet.wait_for(lambda: kubelet.healthy())


def test_a_refusal_is_said_and_tried_again(node, kubelet: Kubelet) -> None:
    kubelet.refusal = "not today"
    daemon = node(is_awaited=False)
    eventually(lambda: any("not today" in e["text"] for e in daemon.state()["events"]))
    kubelet.refusal = ""
    kubelet.wait_for(lambda: kubelet.healthy())


def test_another_plugin_for_the_same_resource_is_noticed(node, kubelet: Kubelet, run_dir: Path) -> None:
    daemon = node()
    with kubelet.changed:
        ours = kubelet.plugins.pop("gpulimit.io/gpu")
    ours.hang_up()
    other = Plugin(run_dir / "no.sock", None)
    eventually(lambda: "device_plugin" in ready(daemon)[1])
    kubelet.wait_for(lambda: kubelet.healthy(), within_s=30)
    assert any("another plugin" in e["text"] for e in daemon.state()["events"])
    other.hang_up()


def test_the_daemon_restarts(node, kubelet: Kubelet) -> None:
    daemon = node()
    plugin = kubelet.plugins["gpulimit.io/gpu"]
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait(timeout=10)
    assert plugin.has_ended.wait(10), "the kubelet sees at once that nothing can be allocated"
    node()
    assert len(kubelet.healthy()) == 10


def test_nothing_is_given_while_the_library_is_missing(node, kubelet: Kubelet, run_dir: Path) -> None:
    node()
    device = kubelet.healthy()[0]
    library = Path(next(m.host_path for m in kubelet.allocate(device).mounts if m.container_path == LIBRARY))
    library.unlink()
    library.mkdir()  # as a runtime does where a file to mount is missing
    assert kubelet.allocate(device)
    assert library.is_file(), "put back into place"
    (library / "..").resolve().chmod(0o755)
    library.write_bytes(b"not a library")
    assert kubelet.allocate(device)
    assert library.read_bytes()[:4] == b"\x7fELF"


# ---- pods ----


def test_every_pod_has_its_own_slices_whatever_the_order(node, kubelet: Kubelet, pod, load) -> None:
    daemon = node(slices_per_gpu="100", log_level="info")
    devices = kubelet.healthy()
    pods = [pod() for _ in range(6)]
    shares = dict(zip((one.uid for one in pods), (3, 20, 7, 11, 25, 5), strict=True))
    wanted, at = [], 0
    for one in pods:
        wanted.append((one.uid, devices[at : at + shares[one.uid]]))
        at += shares[one.uid]
    random.Random(3).shuffle(wanted)  # noqa: S311
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda pair: kubelet.allocate(*pair[1], pod=pair[0]), wanted))
    for one in reversed(pods):
        load(one, "--idle", "--seconds", "30")
    for one in pods:
        tenant = tenant_of(daemon, one)
        assert tenant["source"] == "slices"
        gpu = tenant["gpus"][0]
        total = daemon.state()["gpus"][0]["memory_bytes"]
        assert gpu["memory_limit_bytes"] == pytest.approx(total * shares[one.uid] / 100, rel=0.001)
        assert gpu["compute_request_percent"] == shares[one.uid]


def test_a_restarting_pod_does_not_take_a_new_one_s_quota(node, kubelet: Kubelet, pod, load) -> None:
    daemon = node()
    devices = kubelet.healthy()
    old, new = pod(), pod()
    kubelet.allocate(*devices[:4], pod=old.uid)
    load(old, "--seconds", "0.2").wait(20)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        again = pool.submit(load, old, "--idle", "--seconds", "20")
        kubelet.allocate(devices[4], pod=new.uid)
        load(new, "--idle", "--seconds", "20")
        again.result()
    assert tenant_of(daemon, new)["gpus"][0]["compute_request_percent"] == 10
    assert tenant_of(daemon, old)["gpus"][0]["compute_request_percent"] == 40
    eventually(lambda: 'state="allotted"} 5' in page(daemon, "/metrics")[1])
    assert 'gpulimit_device_plugin_allocations_total{result="granted"} 2' in page(daemon, "/metrics")[1]


def test_quota_of_slices_is_enforced_and_cannot_be_raised(node, kubelet: Kubelet, pod, load) -> None:
    daemon = node()
    one = pod()
    kubelet.allocate(*kubelet.healthy()[:1], pod=one.uid)
    total = daemon.state()["gpus"][0]["memory_bytes"]
    fits = load(one, "--memory", str(total // 20), "--seconds", "0.5")
    assert fits.wait(30) == 0, fits.stderr.read()
    over = load(one, "--memory", str(total // 5), "--seconds", "0.5", GPULIMIT_MEMORY="100%")
    out, err = over.communicate(timeout=30)
    assert over.returncode != 0 and "OUT_OF_MEMORY" in out + err


def test_a_second_container_of_a_pod_adds_its_slices(node, kubelet: Kubelet, pod, load) -> None:
    daemon = node()
    one = pod()
    devices = kubelet.healthy()
    kubelet.allocate(*devices[:2], pod=one.uid, container="first")
    load(one, "--idle", "--seconds", "20")
    assert tenant_of(daemon, one)["gpus"][0]["compute_request_percent"] == 20
    kubelet.allocate(*devices[2:5], pod=one.uid, container="second")
    eventually(lambda: tenant_of(daemon, one)["gpus"][0]["compute_request_percent"] == 50)


def test_an_init_container_s_slices_are_used_again(node, kubelet: Kubelet, pod, load) -> None:
    daemon = node()
    one = pod()
    devices = kubelet.healthy()
    kubelet.allocate(*devices[:3], pod=one.uid, container="init")
    kubelet.allocate(*devices[:3], pod=one.uid, container="main")
    load(one, "--idle", "--seconds", "20")
    assert tenant_of(daemon, one)["gpus"][0]["compute_request_percent"] == 30
    eventually(lambda: 'state="allotted"} 3' in page(daemon, "/metrics")[1])


def test_pods_keep_their_quota_over_restarts_and_a_lost_record(node, kubelet: Kubelet, pod, load) -> None:
    daemon = node()
    one = pod()
    kubelet.allocate(*kubelet.healthy()[:3], pod=one.uid)
    process = load(one, "--idle", "--seconds", "50")
    tenant_of(daemon, one)
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait(timeout=10)
    kubelet.restart()
    daemon = node()
    eventually(lambda: tenant_of(daemon, one)["workers"])
    assert tenant_of(daemon, one)["gpus"][0]["compute_request_percent"] == 30
    kubelet.forget(one.uid)
    with pytest.raises(AssertionError):
        kubelet.wait_for(lambda: False, within_s=2.5)
    assert tenant_of(daemon, one)["gpus"][0]["compute_request_percent"] == 30
    assert process.poll() is None


def test_a_pod_that_starts_before_the_daemon_after_a_reboot(
    node, kubelet: Kubelet, pod, load, run_dir
) -> None:
    """What a reboot leaves: the kubelet's record and /var/lib, but nothing of /run and /dev/shm."""
    daemon = node()
    one, late = pod(), pod()
    kubelet.allocate(*kubelet.healthy()[:3], pod=one.uid)
    before = load(one, "--idle", "--seconds", "50")
    tenant_of(daemon, one)
    for process in (before, daemon.process):
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    kubelet.stop()
    (run_dir / "daemon.sock").unlink()
    remove_segments(f"pod-{one.uid}")

    impatient = load(late, "--seconds", "0.2", GPULIMIT_WAIT="0.5")
    patient = load(one, "--idle", "--seconds", "50", GPULIMIT_WAIT="40")
    assert impatient.wait(30) != 0 and "does not answer" in impatient.stderr.read()
    kubelet.start()
    daemon = node()
    tenant = eventually(lambda: tenant_of(daemon, one)["workers"] and tenant_of(daemon, one))
    assert tenant["gpus"][0]["compute_request_percent"] == 30 and tenant["source"] == "slices"
    assert patient.poll() is None


def test_a_record_that_cannot_be_read_takes_nobody_in(node, kubelet: Kubelet, pod, load) -> None:
    daemon = node()
    one = pod()
    (kubelet.folder / "kubelet_internal_checkpoint").write_text('{"Data": {"something": "new"}}')
    process = load(one, "--seconds", "0.2", GPULIMIT_WAIT="1")
    assert process.wait(30) != 0
    assert daemon.tenant(f"pod-{one.uid}") is None
    assert any("PodDeviceEntries" in e["text"] for e in daemon.state()["events"])
