# SPDX-License-Identifier: Apache-2.0
"""A whole node of real parts: API server, scheduler, controller manager, containerd and kubelet 1.20, in the
namespaces that in_node.sh makes. Its pods' image holds tests/k8s/workload.c.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.k8s.parts import PARTS, ApiError, ControlPlane, Object

NAME = "node-a"
IMAGE = "test.local/workload:1"
LIBRARIES = ("libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libgcc_s.so.1")
LOADER = Path("/lib64/ld-linux-x86-64.so.2")
GROUP = f"gpulimit-node-{os.environ.get('GPULIMIT_TEST_NODE', os.getpid())}"
WAIT_S = 120.0


class RealNode(ControlPlane):
    """The node; `close` leaves the rest to the end of the namespaces."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kubelet_ca_file = folder / "kubelet/kubelet.crt"
        self.static_pods = folder / "static"
        self.static_pods.mkdir()
        self._kubelet: subprocess.Popen[bytes] | None = None
        self._more: list[subprocess.Popen[bytes]] = []
        self._kubeconfig = self._write(
            "kubeconfig",
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)},
                    }
                ],
                "users": [{"name": "u", "user": {"token": "tok-admin"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            },
        )
        self._start_containerd()
        self._start_controllers()
        self.start_kubelet()

    def _write(self, name: str, content: Object) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(content))
        return path

    def _log(self, name: str) -> Any:
        log = (self.folder / f"{name}.log").open("ab")
        self._logs.append(log)
        return log

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._log(name)
        environ = {**os.environ, "PATH": f"{PARTS}:{os.environ['PATH']}"}
        argv = [str(PARTS / name), *arguments]
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, start_new_session=True
        )

    def _start_containerd(self) -> None:
        folder, socket = self.folder, self.folder / "containerd.sock"
        cni = folder / "cni"
        cni.mkdir()
        plugins: list[Object] = [
            {
                "type": "bridge",
                "bridge": "cni-test",
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.99.0.0/24"}]]},
            },
            {"type": "loopback"},
        ]
        config = {"cniVersion": "0.4.0", "name": "test", "plugins": plugins}
        (cni / "10-test.conflist").write_text(json.dumps(config))
        # restrict_oom_score_adj: root in a container may not lower it, and every sandbox would fail.
        (folder / "containerd.toml").write_text(
            f"""
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd.run"
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PARTS}/cni"
conf_dir = "{cni}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{PARTS}/runc"
SystemdCgroup = false
"""
        )
        self._more.append(self._run("containerd", "-c", str(folder / "containerd.toml")))
        self.wait(socket.exists)
        ctr = [str(PARTS / "ctr"), "-a", str(socket), "-n", "k8s.io", "images", "import"]
        image = write_image(folder)
        subprocess.run([*ctr, str(image)], check=True, capture_output=True, timeout=60)

    def _start_controllers(self) -> None:
        common = (f"--kubeconfig={self._kubeconfig}", "--leader-elect=false", "--port=0", "--secure-port=0")
        key = self.folder / "sa.key"
        self._more.append(
            self._run(
                "kube-controller-manager",
                *common,
                f"--service-account-private-key-file={key}",
                f"--root-ca-file={self.ca_file}",
            )
        )
        self._more.append(self._run("kube-scheduler", *common))

    def start_kubelet(self) -> None:
        """Start the kubelet; the node is ready some seconds later."""
        config = self._write(
            "kubelet.json",
            {
                "kind": "KubeletConfiguration",
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
                "authorization": {"mode": "AlwaysAllow"},
                "cgroupDriver": "cgroupfs",
                "cgroupRoot": f"/{make_groups()}",
                "failSwapOn": False,
                "enforceNodeAllocatable": [],
                "evictionHard": {"nodefs.available": "1Mi", "memory.available": "1Mi"},
                "staticPodPath": str(self.static_pods),
                "fileCheckFrequency": "1s",
                "nodeStatusUpdateFrequency": "2s",
                "registryPullQPS": 0,
            },
        )
        self._kubelet = self._run(
            "kubelet",
            f"--config={config}",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={NAME}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self.folder}/containerd.sock",
            f"--cert-dir={self.folder}/kubelet",
        )

    def stop_kubelet(self) -> None:
        """Kill the kubelet; containers live on."""
        assert self._kubelet is not None
        os.killpg(self._kubelet.pid, signal.SIGKILL)
        self._kubelet.wait()

    def wait(self, check: Any, within_s: float = WAIT_S) -> Any:
        """Return the first true answer; raise with what the kubelet says if there is none in time."""
        end = time.monotonic() + within_s
        while True:
            with contextlib.suppress(ApiError, OSError, KeyError, IndexError):
                if found := check():
                    return found
            if time.monotonic() > end:
                log = self.folder / "kubelet.log"
                said = log.read_text(errors="replace")[-3000:] if log.exists() else ""
                raise TimeoutError(f"never true within {within_s} s: {check}\n{said}")
            time.sleep(0.1)

    def close(self) -> None:
        for process in filter(None, (self._kubelet, *self._more)):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        super().close()

    # ---- what tests ask ----

    def node(self) -> Object:
        return self.request("GET", f"/api/v1/nodes/{NAME}")

    def is_ready(self) -> bool:
        conditions = {one["type"]: one["status"] for one in self.node()["status"]["conditions"]}
        return conditions.get("Ready") == "True"

    def allocatable(self, resource: str) -> int:
        return int(self.node()["status"]["allocatable"].get(resource, "0"))

    def run_pod(
        self,
        name: str,
        *,
        annotations: dict[str, str] | None = None,
        containers: Iterable[str] = ("main",),
        slices: int = 1,
        mib: int = 100,
    ) -> Object:
        """Make a pod whose containers run the workload; return it when it runs."""
        made = workload(name, annotations, containers, slices, mib)
        self.request("POST", "/api/v1/namespaces/default/pods", made)
        return self.running(name)

    def running(self, name: str) -> Object:
        def look() -> Object | None:
            found = self.request("GET", f"/api/v1/namespaces/default/pods/{name}")
            if found["status"].get("phase") == "Failed":
                raise AssertionError(f"{name}: {found['status']}")
            return found if found["status"].get("phase") == "Running" else None

        return dict(self.wait(look))

    def says(self, made: Object, container: str = "main") -> str:
        """Return the last line that a container has written."""
        meta = made["metadata"]
        folder = Path("/var/log/pods") / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / container
        logs = sorted(folder.glob("*.log"), key=lambda path: int(path.stem))
        lines = logs[-1].read_text().splitlines() if logs else []
        return lines[-1].split(" ", 3)[3] if lines else ""


def workload(
    name: str,
    annotations: dict[str, str] | None = None,
    containers: Iterable[str] = ("main",),
    slices: int = 1,
    mib: int = 100,
) -> Object:
    limits = {"limits": {"gpulimit.io/gpu": str(slices)}} if slices else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {f"gpulimit.io/{key}": value for key, value in (annotations or {}).items()},
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": container,
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["/bin/workload", str(mib)],
                    "resources": limits,
                }
                for container in containers
            ],
        },
    }


def make_groups() -> str:
    """Make the control groups that are the kubelet's root: it ends whatever it does not know below it."""
    for hierarchy in hierarchies():
        group = hierarchy / GROUP
        group.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (group / name).exists():
                (group / name).write_text((hierarchy / name).read_text())
    return GROUP


def remove_groups() -> None:
    """Remove them, once all that was in them has ended."""
    end = time.monotonic() + 10
    while (left := [h / GROUP for h in hierarchies() if (h / GROUP).exists()]) and time.monotonic() < end:
        for top in left:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        time.sleep(0.1)


def hierarchies() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.procs").exists():
        return [root]
    return [path for path in root.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def write_image(folder: Path) -> Path:
    """Write the image, as `docker save` would: the workload, which by itself waits, and the C library."""
    root = folder / "image"
    (root / "bin").mkdir(parents=True)
    (root / "lib64").mkdir()
    libraries = root / "lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in ("tmp", "etc", "run", "usr/lib", "usr/local"):
        (root / name).mkdir(parents=True)
    shutil.copy(LOADER.resolve(), root / "lib64" / LOADER.name)
    for name in LIBRARIES:
        found = next(
            (p for p in (Path("/lib/x86_64-linux-gnu") / name, Path("/lib64") / name) if p.exists()), None
        )
        if found is not None:
            shutil.copy(found.resolve(), libraries / name)
    source = Path(__file__).with_name("workload.c")
    subprocess.run(
        ["gcc", "-O1", "-w", "-o", str(root / "bin/workload"), str(source), "-ldl"], check=True, timeout=60
    )
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(root, arcname=".")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/workload"], "Cmd": ["wait"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(layer.getvalue())}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    image = folder / "image.tar"
    with tarfile.open(image, "w") as tar:
        for name, content in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return image


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
