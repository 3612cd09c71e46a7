# SPDX-License-Identifier: Apache-2.0
"""What containers of a whole node of real parts are handed, and keep over restarts and upgrades; run by
test_real_node.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hypervisor.deviceplugin import checkpoint
from hypervisor.deviceplugin.pod_resources import PodResources
from hypervisor.pods.pod import Pod
from tests.daemon.conftest import Daemon
from tests.k8s.inside_node import node, plane, total
from tests.k8s.node import RealNode, workload
from tests.k8s.test_tenants import value

__all__ = ["node", "plane"]

pytestmark = pytest.mark.timeout(240)
GIB = 1 << 30
RESOURCE = "gpulimit.io/gpu"
PODS = "/api/v1/namespaces/default/pods"
RECORD = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")


def make(plane: RealNode, name: str, *, env: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
    made = workload(name, **options)
    made["spec"]["containers"][0]["env"] = [{"name": k, "value": v} for k, v in (env or {}).items()]
    return plane.request("POST", PODS, made)


def tenant(ours: Daemon, made: dict[str, Any]) -> dict[str, Any] | None:
    return ours.tenant(f"pod-{made['metadata']['uid']}")


def test_two_pods_on_one_card(plane: RealNode, node: Callable[..., Daemon]) -> None:
    """The whole way: each sees its own, is refused above it, and goes on whatever else happens."""
    ours = node()
    small = plane.run_pod("small", annotations={"memory": "1Gi"}, slices=2, mib=2000)
    large = plane.run_pod("large", annotations={"memory": "3Gi"}, slices=4, mib=2000)
    plane.wait(
        lambda: (
            plane.says(small) == f"total {GIB} alloc 2" and plane.says(large) == f"total {3 * GIB} alloc 0"
        )
    )
    uuids = {gpu["uuid"] for gpu in ours.state()["gpus"]}
    assert len(uuids) == 1 and len(ours.state()["tenants"]) == 2

    plane.annotate("default", "small", {"memory": "4Gi"})
    plane.wait(lambda: plane.says(small) == f"total {4 * GIB} alloc 0")
    assert total(plane, large) == 3 * GIB

    plane.stop_kubelet()
    ours.stop(signal.SIGKILL)
    plane.start_kubelet()
    ours = node()
    plane.wait(
        lambda: (tenant(ours, small) or {}).get("workers") and (tenant(ours, large) or {}).get("workers")
    )
    assert (total(plane, small), total(plane, large)) == (4 * GIB, 3 * GIB)

    plane.delete_pod("default", "small")
    plane.wait(lambda: tenant(ours, small) is None)
    third = plane.run_pod("third", annotations={"memory": "2Gi"}, slices=6)
    plane.wait(lambda: total(plane, third) == 2 * GIB)
    assert total(plane, large) == 3 * GIB


def test_the_kubelet_says_what_its_record_has(plane: RealNode, node: Callable[..., Daemon]) -> None:
    """1.20 has List alone."""
    ours = node()
    made = plane.run_pod("told", slices=3)
    plane.wait(lambda: tenant(ours, made))
    uid = made["metadata"]["uid"]
    record = checkpoint.allocations(RECORD.read_text(), RESOURCE)

    async def ask() -> PodResources:
        asked = PodResources(
            RECORD.parents[1], RESOURCE, lambda *_: None, lambda: [Pod(uid, uid, "default", "told")]
        )
        asked.want(uid)
        running = asyncio.create_task(asked.run())
        async with asyncio.timeout(30):
            while not asked.knows(uid):
                await asyncio.sleep(0.05)
        running.cancel()
        return asked

    asked = asyncio.run(ask())
    assert asked.told == {uid: record[uid]} and len(record[uid]["main"]) == 3
    assert asked._lacks == {"Get"} and asked.allocatable is None
    plane.wait(lambda: value(ours, "device_plugin_pod_resources_up") == 1)


def test_slices_alone_are_a_quota(plane: RealNode, node: Callable[..., Daemon]) -> None:
    ours = node()
    card = ours.state()["gpus"][0]["memory_bytes"]
    made = plane.run_pod("sliced", slices=2)
    plane.wait(lambda: total(plane, made) is not None)
    assert total(plane, made) == pytest.approx(card / 5, rel=0.001)
    shown = tenant(ours, made)
    assert shown is not None and shown["source"] == "slices"
    assert shown["gpus"][0]["compute_request_percent"] == 20

    beside = plane.run_pod("plain", slices=0)
    plane.wait(lambda: plane.says(beside).startswith("error dlopen"))
    make(plane, "too-much", slices=9)
    path = (
        "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=too-much,reason=FailedScheduling"
    )
    plane.wait(lambda: plane.request("GET", path)["items"])


def test_variables_do_not_help(plane: RealNode, node: Callable[..., Daemon]) -> None:
    node()
    loose = {
        "GPULIMIT_SOCKET": "/nowhere",
        "GPULIMIT_ON_LOSS": "open",
        "GPULIMIT_MEMORY": "100%",
        "LD_PRELOAD": "",
        "POD_NAME": "somebody-else",
    }
    made = make(plane, "loose", env=loose, annotations={"memory": "1Gi"}, mib=2000)
    plane.wait(lambda: plane.says(made) == f"total {GIB} alloc 2")


def test_a_pod_waits_for_the_daemon(plane: RealNode, node: Callable[..., Daemon]) -> None:
    ours = node()
    ours.stop(signal.SIGKILL)
    plane.wait(lambda: plane.allocatable(RESOURCE) == 0)
    make(plane, "early", annotations={"memory": "1Gi"})
    path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=early,reason=FailedScheduling"
    plane.wait(lambda: plane.request("GET", path)["items"])
    node()
    made = plane.running("early")
    plane.wait(lambda: total(plane, made) == GIB)


@pytest.fixture
def next_build(tmp_path: Path, built: Any) -> Iterator[Path]:
    """An installation with another build of the library."""
    folder = tmp_path / "next"
    folder.mkdir()
    for name in ("sim", "hooks.def", "libgpupath.so"):
        if (built.lib / name).exists():
            (folder / name).symlink_to((built.lib / name).resolve())
    content = (built.lib / "libgpulimit.so").read_bytes()
    (folder / "libgpulimit.so").write_bytes(content + b"\0")
    yield folder
    shutil.rmtree(folder)


def libraries_given() -> dict[str, set[str]]:
    """Return which builds pods were given, by the kubelet's record."""
    given: dict[str, set[str]] = {}
    for entry in json.loads(RECORD.read_text())["Data"]["PodDeviceEntries"] or ():
        answer = base64.b64decode(entry["AllocResp"]).decode("latin-1")
        names = {part.split(".so")[0] for part in answer.split("libgpulimit-")[1:]}
        given.setdefault(entry["PodUID"], set()).update(names)
    return given


def test_an_upgrade_disturbs_nobody(plane: RealNode, node: Callable[..., Daemon], next_build: Path) -> None:
    ours = node()
    old = plane.run_pod("old", annotations={"memory": "1Gi"})
    plane.wait(lambda: total(plane, old) == GIB)
    ours.stop()
    ours = node(env={"GPULIMIT_LIB_DIR": str(next_build)})
    fresh = plane.run_pod("fresh", annotations={"memory": "2Gi"})
    plane.wait(lambda: total(plane, fresh) == 2 * GIB)
    given = libraries_given()
    assert given[old["metadata"]["uid"]].isdisjoint(given[fresh["metadata"]["uid"]])
    assert total(plane, old) == GIB

    # The old pod's container ends, and is started again with what it was given then.
    worker = plane.wait(lambda: (tenant(ours, old) or {})["workers"][0])
    os.kill(worker["host_pid"], signal.SIGKILL)

    def has_restarted() -> bool:
        status = plane.request("GET", f"{PODS}/old")["status"]["containerStatuses"][0]
        return bool(status["restartCount"] == 1 and "running" in status["state"])

    plane.wait(has_restarted)
    plane.wait(lambda: total(plane, old) == GIB and (tenant(ours, old) or {}).get("workers"))
