# SPDX-License-Identifier: Apache-2.0
"""The DaemonSet of deploy/k8s itself on a whole node of real parts: its rights, mounts and probes, with an
image that holds this machine's Python and this checkout; run by test_real_node.py.

What differs from the manifest: the simulated driver, the host's network (nothing routes to the API server
here), and folders below /var, which is this node's own.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Built, remove_segments
from tests.k8s.inside_node import total
from tests.k8s.node import NAME, RealNode, digest
from tests.k8s.parts import PARTS

yaml = pytest.importorskip("yaml", reason="needs PyYAML")

pytestmark = pytest.mark.timeout(300)
IMAGE = "test.local/gpulimit:1"
RUN, SIM = Path("/var/gpulimit-run"), Path("/var/lib/gpulimit/sim")
SEGMENT = f"gpulimit.s.ds-{os.getpid()}"
RESOURCE = "gpulimit.io/gpu"
GIB = 1 << 30
PODS = "/api/v1/namespaces/gpulimit/pods"
PACKAGES = (
    *(
        "aiohttp",
        "aiohappyeyeballs",
        "aiosignal",
        "attr",
        "attrs",
        "cffi",
        "_cffi_backend*.so",
        "frozenlist",
        "google",
    ),
    *(
        "grpc",
        "idna",
        "multidict",
        "posix_ipc*.so",
        "prometheus_client",
        "propcache",
        "pycparser",
        "pynvml.py",
    ),
    *("typing_extensions.py", "yarl", "cryptography"),
)
"""What the daemon needs beside itself."""


def libraries_of(paths: list[Path]) -> set[Path]:
    """Return the shared libraries that files need."""
    done = subprocess.run(["ldd", *map(str, paths)], capture_output=True, text=True, check=False)
    words = (word for line in done.stdout.splitlines() for word in line.split())
    return {Path(word) for word in words if word.startswith("/") and ".so" in word and not word.endswith(":")}


def write_image(folder: Path) -> Path:
    """Write an image with this Python, its packages and this checkout."""
    site = Path(sysconfig.get_paths()["purelib"])
    standard = Path(sysconfig.get_paths()["stdlib"])
    python = Path(sys.executable).resolve()
    packages = [path for name in PACKAGES for path in site.glob(name)]
    modules = [*standard.glob("lib-dynload/*.so"), *(so for path in packages for so in path.rglob("*.so"))]
    modules += [path for path in packages if path.suffix == ".so"]
    skipped = {
        "tests",
        "test",
        "__pycache__",
        "idlelib",
        "dist-packages",
        "sim",
        "config-3.11-x86_64-linux-gnu",
    }

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if skipped & set(entry.name.split("/")) else entry

    layer = folder / "layer.tar"
    with tarfile.open(layer, "w", dereference=True) as tar:
        for path in {python, *libraries_of([python, *modules])}:
            tar.add(path, arcname=str(path))
        tar.add(standard, arcname=str(standard), filter=wanted)
        for path in packages:
            tar.add(path, arcname=f"/opt/site/{path.name}", filter=wanted)
        for package in ("limiter", "hypervisor"):
            tar.add(ROOT / package, arcname=f"/opt/site/{package}", filter=wanted)
        for name in ("tmp", "etc", "run", "var", "dev", "proc", "sys"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add("/bin/cat", arcname="/bin/cat")
    content = layer.read_bytes()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": [str(python), "-m", "limiter"],
            "Env": ["PYTHONPATH=/opt/site", f"PYTHONHOME={standard.parents[1]}", "PYTHONDONTWRITEBYTECODE=1"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(content)}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    image = folder / "gpulimit.tar"
    with tarfile.open(image, "w") as tar:
        for name, raw in (("config.json", json.dumps(config)), ("manifest.json", json.dumps(manifest))):
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw.encode()))
        tar.add(layer, arcname="layer.tar")
    return image


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, built: Built) -> Iterator[RealNode]:
    made = RealNode(tmp_path_factory.mktemp("node"))
    made.wait(made.is_ready)
    ctr = [str(PARTS / "ctr"), "-a", str(made.folder / "containerd.sock"), "-n", "k8s.io", "images", "import"]
    subprocess.run([*ctr, str(write_image(made.folder))], check=True, capture_output=True, timeout=120)
    SIM.mkdir(parents=True)
    shutil.copytree(built.lib, SIM / "lib", ignore=shutil.ignore_patterns("*.o", "*.d"))
    yield made
    pods = made.request("GET", "/api/v1/namespaces/default/pods")["items"]
    for one in pods:
        remove_segments(f"pod-{one['metadata']['uid']}")
    for path in Path("/dev/shm").glob("gpulimit.*"):
        if path.name == SEGMENT:
            path.unlink()
    made.close()


def manifests(plane: RealNode) -> Iterator[dict[str, Any]]:
    """Yield deploy/k8s as this node can have it."""
    folder = ROOT / "deploy/k8s"
    text = "---\n".join((folder / f"{name}.yaml").read_text() for name in ("namespace", "rbac", "daemonset"))
    for item in yaml.safe_load_all(
        text.replace("/run/gpulimit\n", f"{RUN}\n")
        .replace("/run/gpulimit,", f"{RUN},")
        .replace("/run/gpulimit}", f"{RUN}}}")
    ):
        if item["kind"] == "DaemonSet":
            spec = item["spec"]["template"]["spec"]
            spec["hostNetwork"] = True
            container = spec["containers"][0]
            container["image"], container["imagePullPolicy"] = IMAGE, "Never"
            container["args"] = ["daemon", "--sim"]
            container["env"] += [
                {"name": name, "value": value}
                for name, value in {
                    "GPULIMITD_KUBE_API": plane.url,
                    "GPULIMITD_SOCKET": str(RUN / "hypervisor.sock"),
                    "GPULIMITD_STATE_SEGMENT": SEGMENT,
                    "GPULIMIT_LIB_DIR": str(SIM / "lib"),
                    "GPULIMIT_SIM_STATE": str(SIM / "state"),
                }.items()
            ]
        yield item
    data = {"gpulimit.toml": (folder / "gpulimit.toml").read_text()}
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "gpulimit", "namespace": "gpulimit"},
        "data": data,
    }


def state_from_inside(plane: RealNode, pod: dict[str, Any]) -> dict[str, Any]:
    """Return what the daemon answers an operator in its own container, as `kubectl exec` makes one.

    These tests themselves run in a control group of no known layout, whose root is no operator in a cluster.
    """
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    program = (
        "import json; from limiter import daemon_client; "
        f"print(json.dumps(daemon_client.ask('GET', '/v1/state', path={str(RUN / 'hypervisor.sock')!r})))"
    )
    ctr = [str(PARTS / "ctr"), "-a", str(plane.folder / "containerd.sock"), "-n", "k8s.io", "task", "exec"]
    argv = [*ctr, "--exec-id", "operator", container, str(Path(sys.executable).resolve()), "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_daemon_set_serves_pods(plane: RealNode) -> None:
    from tests.k8s.test_real_deploy import create

    for item in sorted(
        manifests(plane), key=lambda one: (one["kind"] != "Namespace", one["kind"] == "DaemonSet")
    ):
        create(plane, item)
    label = {"metadata": {"labels": {"gpulimit.io/node": "true"}}}
    plane.request("PATCH", f"/api/v1/nodes/{NAME}", label, kind="application/merge-patch+json")

    def daemon_pod() -> dict[str, Any] | None:
        found = plane.request("GET", PODS)["items"]
        ready = [one for one in found if (one["status"].get("containerStatuses") or [{}])[0].get("ready")]
        return ready[0] if ready else None

    try:
        first = plane.wait(daemon_pod, within_s=60)
    except TimeoutError:
        logs = [p.read_text()[-3000:] for p in Path("/var/log/pods").glob("gpulimit_*/*/*.log")]
        events = [e["message"] for e in plane.request("GET", "/api/v1/namespaces/gpulimit/events")["items"]]
        pytest.fail("\n".join([*events[-10:], *logs]))
    plane.wait(lambda: plane.allocatable(RESOURCE) == 10)

    small = plane.run_pod("small", annotations={"memory": "1Gi"}, slices=2, mib=2000)
    large = plane.run_pod("large", annotations={"memory": "3Gi"}, slices=3, mib=2000)
    plane.wait(
        lambda: (
            plane.says(small) == f"total {GIB} alloc 2" and plane.says(large) == f"total {3 * GIB} alloc 0"
        )
    )
    state = state_from_inside(plane, first)
    assert state["daemon"]["not_ready"] == []
    assert [
        e["text"] for e in state["events"] if e["kind"] in ("refused", "segment_failed", "files_not_sent")
    ] == []

    plane.request("DELETE", f"{PODS}/{first['metadata']['name']}")
    plane.wait(lambda: (daemon_pod() or first)["metadata"]["uid"] != first["metadata"]["uid"])
    plane.annotate("default", "small", {"memory": "2Gi"})
    plane.wait(lambda: total(plane, small) == 2 * GIB)
    assert total(plane, large) == 3 * GIB
    status = plane.request("GET", "/api/v1/namespaces/default/pods/small")["status"]["containerStatuses"][0]
    assert status["restartCount"] == 0
