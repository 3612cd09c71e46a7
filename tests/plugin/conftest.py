# SPDX-License-Identifier: Apache-2.0
"""A daemon that offers its simulated cards to a kubelet of the test's own, and processes in pods' cgroups."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Built, RunProcess, StartProcess, remove_segments
from tests.daemon.conftest import client, daemon, daemon_env, eventually, run_dir
from tests.plugin.kubelet import Kubelet

__all__ = ["client", "daemon", "daemon_env", "run_dir"]
HIERARCHIES = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")]


@pytest.fixture
def kubelet(run_dir: Path) -> Iterator[Kubelet]:
    """A kubelet that runs."""
    pytest.importorskip("grpc", reason="needs the extra k8s")
    made = Kubelet(run_dir / "kubelet")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def node(daemon: Callable[..., Any], kubelet: Kubelet, run_dir: Path) -> Callable[..., Any]:
    """Start a daemon that offers its cards; returns when the kubelet knows them."""

    def start(*arguments: str, is_awaited: bool = True, **options: str) -> Any:
        settings = {
            "device_plugin": "on",
            "kubelet_dir": str(run_dir / "kubelet"),
            "library_dir": str(run_dir / "lib"),
            **options,
        }
        before = kubelet.registrations
        made = daemon(*arguments, **settings)
        if is_awaited:
            kubelet.wait_for(lambda: kubelet.registrations > before and kubelet.healthy())
        return made

    return start


class Pod:
    """A pod's cgroup on this machine, with a container in it."""

    def __init__(self, start_process: StartProcess) -> None:
        self.uid = str(uuid.uuid4())
        self._start = start_process
        root = next((h for h in HIERARCHIES if (h / "cgroup.procs").exists()), None)
        if root is None:
            pytest.skip("no cgroup hierarchy")
        top = root / f"gpulimit-test-{os.getpid()}"
        self.folder = top / "kubepods" / "burstable" / f"pod{self.uid}" / (uuid.uuid4().hex * 2)
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            pytest.skip(f"cannot make cgroups: {error}")

    def start(self, argv: Sequence[str | Path], **popen: Any) -> Any:
        script = f'echo $$ > {self.folder}/cgroup.procs && exec "$@"'
        return self._start(["/bin/sh", "-c", script, "sh", *argv], **popen)

    def close(self) -> None:
        """Remove the cgroup, once its processes are gone, the folders above that nobody else is in, and the
        pod's shared memory.
        """
        remove_segments(f"pod-{self.uid}")
        for _ in range(200):
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                break
            time.sleep(0.02)
        for folder in list(self.folder.parents)[:4]:
            with contextlib.suppress(OSError):
                folder.rmdir()


@pytest.fixture
def pod(start_process: StartProcess) -> Iterator[Callable[[], Pod]]:
    """Make pods."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make cgroups")
    made: list[Pod] = []

    def make() -> Pod:
        made.append(Pod(start_process))
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(OSError):
            for pid in (one.folder / "cgroup.procs").read_text().split():
                os.kill(int(pid), 9)
        one.close()


@pytest.fixture
def load(built: Built, daemon_env: dict[str, str], run_dir: Path) -> Callable[..., Any]:
    """Start the built-in workload in a pod, as a container that was handed the library and the socket."""

    def start(pod: Pod, *arguments: str, **variables: str) -> Any:
        env = daemon_env | {
            "LD_LIBRARY_PATH": str(built.sim),
            "LD_PRELOAD": str(built.library),
            "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
            **variables,
        }
        return pod.start([sys.executable, "-P", "-m", "limiter", "load", "--json", *arguments], env=env)

    return start


@pytest.fixture
def xid(built: Built, daemon_env: dict[str, str], run_process: RunProcess) -> Callable[[int, int], None]:
    """Let a simulated card report an error; 79: it is lost; 0: it is well again."""

    def report(index: int, number: int) -> None:
        script = (
            "import ctypes, sys; nvml = ctypes.CDLL('libnvidia-ml.so.1'); assert nvml.nvmlInit_v2() == 0; "
        )
        script += f"sys.exit(nvml.gpulimit_sim_xid({index}, {number}))"
        env = daemon_env | {"LD_LIBRARY_PATH": str(built.sim)}
        run_process([sys.executable, "-c", script], env=env, expect=0)

    return report


def tenant_of(node: Any, pod: Pod) -> dict[str, Any]:
    return dict(eventually(lambda: node.tenant(f"pod-{pod.uid}")))
