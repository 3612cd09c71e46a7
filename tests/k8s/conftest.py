# SPDX-License-Identifier: Apache-2.0
"""API servers for tests: `fake_api`, and `secure_api` that speaks TLS and wants a token.

`daemon` as in tests/daemon; `in_pod(POD, …)` starts processes in control groups as a kubelet names them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartProcess, clean_environ, remove_segments
from tests.daemon.conftest import CLIENT, DEADLINE_S, Client, daemon, daemon_env, run_dir
from tests.k8s.fake_api import FakeApi, container_id

__all__ = ["daemon", "daemon_env", "run_dir"]


@pytest.fixture
def fake_api() -> Iterator[FakeApi]:
    """An API server without TLS; ends with the test."""
    server = FakeApi()
    yield server
    server.close()


@dataclass(frozen=True)
class Secure:
    """An API server with TLS, and the files that a pod has."""

    server: FakeApi
    token_file: Path
    ca_file: Path


def certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """Make a key and a certificate that signs itself; return certificate and key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                f"/CN={name}",
            ),
            *("-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return cert, key


@pytest.fixture
def secure_api(tmp_path: Path) -> Iterator[Secure]:
    cert, key = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    server = FakeApi(tls=tls)
    server.tokens = {"first"}
    token_file = tmp_path / "token"
    token_file.write_text("first\n")
    yield Secure(server, token_file, cert)
    server.close()


# ---- processes in pods ----


def hierarchy() -> Path | None:
    """Return a control group hierarchy in which groups of our own can be made."""
    for place in ("systemd", "freezer", "pids", "unified", "."):
        root = Path("/sys/fs/cgroup", place)
        if (root / "cgroup.procs").exists() and os.access(root, os.W_OK):
            probe = root / f"gpulimit-test-{os.getpid()}"
            with contextlib.suppress(OSError):
                probe.mkdir()
                probe.rmdir()
                return root
    return None


@dataclass
class Groups:
    """Control groups named as a kubelet names them."""

    root: Path
    made: list[Path]

    def enter(self, pid: int, pod_uid: str, container_id: str) -> None:
        """Put a process into a container of a pod."""
        top = self.root / f"gpulimit-test-{os.getpid()}"  # not where a kubelet of this machine clears up
        pod = top / f"kubepods/burstable/pod{pod_uid}"
        group = pod / container_id
        for path in (top, top / "kubepods", top / "kubepods/burstable", pod, group):
            if not path.exists():
                path.mkdir()
                self.made.append(path)
        (group / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        for path in reversed(self.made):
            for _ in range(100):
                try:
                    path.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # its processes are about to be gone, or another test's are there
                    time.sleep(0.02)


@pytest.fixture
def groups(start_process: StartProcess) -> Iterator[Groups]:
    root = hierarchy()
    if root is None:
        pytest.skip("cannot make control groups here")
    made = Groups(root, [])
    yield made
    for path in made.made:
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    made.remove()


@pytest.fixture
def in_pod(run_dir: Path, start_process: StartProcess, groups: Groups) -> Iterator[Callable[..., Client]]:
    """Start processes in a pod's container that register with the test's daemon."""
    seen: set[str] = set()

    def start(
        pod: dict[str, Any],
        container: str = "main",
        *,
        expect: int = 200,
        environment: dict[str, str] | None = None,
        run: int = 0,
    ) -> Client:
        meta = pod["metadata"]
        uid = meta.get("annotations", {}).get("kubernetes.io/config.hash") or meta["uid"]
        seen.add(uid)
        argv = [sys.executable, str(CLIENT), str(run_dir / "daemon.sock"), ""]
        env = clean_environ() | {"PYTHONPATH": str(CLIENT.parents[2])}
        made = Client(start_process(argv, env=env, stdin=subprocess.PIPE))
        groups.enter(made.process.pid, uid, container_id(meta["uid"], container, run))
        end = time.monotonic() + DEADLINE_S
        while True:
            made.answer = made.tell(order="register", tenant="", environment=environment or {})
            # As the library does: the cluster may not have named the pod yet.
            if expect == 503 or made.answer["status"] != 503 or time.monotonic() > end:
                break
            time.sleep(0.1)
        assert made.answer["status"] == expect, made.answer
        return made

    yield start
    for uid in seen:
        remove_segments(f"pod-{uid}")
