# SPDX-License-Identifier: Apache-2.0
"""Real parts of Kubernetes for tests: etcd and an API server, as tests/k8s/build_parts.sh leaves them.

They run as plain processes on ports of their own, with all they write in one folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Object = dict[str, Any]
PARTS = Path(os.environ.get("GPULIMIT_K8S_PARTS") or Path.home() / ".cache/gpulimit-k8s-1.20.2") / "bin"
READY_S = 120.0
"""Cold, on two busy processors; 6 s on a quiet machine."""


def missing(*names: str) -> str:
    """Return why tests with real parts cannot run; empty: they can."""
    if not os.environ.get("GPULIMIT_TEST_K8S"):
        return "real parts of Kubernetes: make test-k8s"
    if shutil.which("openssl") is None:
        return "openssl is not installed"
    lacking = [name for name in names if not (PARTS / name).exists()]
    return f"{', '.join(lacking)} not in {PARTS}: run tests/k8s/build_parts.sh" if lacking else ""


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class ApiError(Exception):
    """The API server refuses."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:300]}")
        self.status = status


class ControlPlane:
    """etcd and an API server. `users`: token to (name, group)."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", options: tuple[str, ...] = ()) -> None:
        self.folder, self.host = folder, host
        self.etcd_port, peer_port, self.port = free_ports(3)
        self.users: dict[str, tuple[str, str]] = {"tok-admin": ("admin", "system:masters")}
        self.token_file, self.ca_file = folder / "token", folder / "certs/apiserver.crt"
        self.token_file.write_text(next(iter(self.users)))
        self._options = options
        self._logs = [(folder / "etcd.log").open("ab"), (folder / "apiserver.log").open("ab")]
        self._context: ssl.SSLContext | None = None
        subprocess.run(
            ["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"],
            check=True,
            capture_output=True,
            timeout=30,
        )
        etcd = f"http://127.0.0.1:{self.etcd_port}"
        peer = f"http://127.0.0.1:{peer_port}"
        self._etcd = self._start(
            0,
            "etcd",
            f"--data-dir={folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        self._api: subprocess.Popen[bytes] | None = None
        self.start_api()

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    def _start(self, log: int, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(PARTS / name), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._logs[log],
            stderr=self._logs[log],
            start_new_session=True,
        )

    def start_api(self) -> None:
        """Start the API server and wait until it is ready."""
        rows = [f'{token},{name},{name},"{group}"' for token, (name, group) in self.users.items()]
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        key = self.folder / "sa.key"
        self._api = self._start(
            1,
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--bind-address={self.host}",
            f"--advertise-address={self.host}",
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder / 'certs'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--etcd-compaction-interval=0",
            *self._options,
        )
        end = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError, ApiError):
                self.request("GET", "/readyz")
                self.request("GET", "/api/v1/namespaces/default")  # made a moment later, the first time
                return
            if self._api.poll() is not None or time.monotonic() > end:
                log = (self.folder / "apiserver.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the API server is not ready:\n{log}")
            time.sleep(0.1)

    def kill_api(self) -> None:
        """SIGKILL: the way a crash looks from outside."""
        assert self._api is not None
        os.killpg(self._api.pid, signal.SIGKILL)
        self._api.wait()

    def compact(self) -> None:
        """Forget everything but the present."""
        environ = {**os.environ, "ETCDCTL_API": "3"}
        etcdctl = [str(PARTS / "etcdctl"), f"--endpoints=http://127.0.0.1:{self.etcd_port}"]
        status = subprocess.run(
            [*etcdctl, "endpoint", "status", "--write-out=json"],
            check=True,
            capture_output=True,
            env=environ,
            timeout=30,
        )
        revision = json.loads(status.stdout)[0]["Status"]["header"]["revision"]
        subprocess.run(
            [*etcdctl, "compact", str(revision)], check=True, capture_output=True, env=environ, timeout=30
        )

    def close(self) -> None:
        for process in (self._api, self._etcd):
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for log in self._logs:
            log.close()

    # ---- requests of an administrator ----

    def request(
        self, method: str, path: str, body: Object | None = None, *, kind: str = "application/json"
    ) -> Object:
        """Return the object that is answered. Raises ApiError."""
        if self._context is None:
            self._context = ssl.create_default_context(cafile=str(self.ca_file))
        headers = {"Authorization": f"Bearer {next(iter(self.users))}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=30, context=self._context) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, error.read().decode("utf-8", "replace")) from error
        return dict(json.loads(text)) if text.startswith(b"{") else {}

    def create_pod(self, made: Object) -> Object:
        """Make a pod with the status that it comes with; return it as the server has it."""
        namespace = made["metadata"]["namespace"]
        fresh = {
            "metadata": {k: v for k, v in made["metadata"].items() if k != "uid"},
            "spec": {**made["spec"], "terminationGracePeriodSeconds": 0},
        }
        self.request("POST", f"/api/v1/namespaces/{namespace}/pods", fresh)
        return self.patch_pod(namespace, made["metadata"]["name"], {"status": made["status"]}, "/status")

    def patch_pod(self, namespace: str, name: str, body: Object, part: str = "") -> Object:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}{part}"
        return self.request("PATCH", path, body, kind="application/merge-patch+json")

    def annotate(self, namespace: str, name: str, annotations: Mapping[str, str | None]) -> Object:
        full = {f"gpulimit.io/{key}": value for key, value in annotations.items()}
        return self.patch_pod(namespace, name, {"metadata": {"annotations": full}})

    def delete_pod(self, namespace: str, name: str) -> None:
        self.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
