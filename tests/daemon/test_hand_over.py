# SPDX-License-Identifier: Apache-2.0
"""Processes that see another /dev/shm than the daemon, as in a container: files come over the socket."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from limiter._native import lib

from tests.conftest import Built, StartProcess
from tests.daemon.conftest import UnixConnection, eventually, needs_root

APART = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec"]
MIB = 1 << 20

pytestmark = [
    needs_root(),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="not installed: unshare"),
]
Apart = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def apart(built: Built, daemon_env: dict[str, str], run_dir, start_process: StartProcess) -> Apart:
    """Start a limited command with a /dev/shm of its own."""

    def start(tenant: str, *arguments: str, preparation: str = "") -> subprocess.Popen[str]:
        env = daemon_env | {
            "LD_LIBRARY_PATH": str(built.sim),
            "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
            "GPULIMIT_TENANT": tenant,
        }
        python = f"exec env LD_PRELOAD={built.library} {sys.executable} -P -m limiter"
        script = f'mount -t tmpfs none /dev/shm; {preparation or ":"}; {python} "$@"'
        return start_process([*APART, script, "sh", *arguments], env=env)

    return start


def quota(node: Any, tenant: str, **said: Any) -> None:
    assert node.ask("PUT", f"/v1/tenants/{tenant}/quota", said)[0] == 200


def test_a_process_with_another_shm_is_limited(daemon, apart, tenant) -> None:
    node = daemon()
    quota(node, tenant, memory="2GiB")
    held = apart(tenant, "load", "--json", "--memory", "256MiB", "--seconds", "1")
    out, err = held.communicate(timeout=30)
    assert held.returncode == 0, err
    more = apart(tenant, "load", "--json", "--memory", "2GiB", "--seconds", "1")
    out, err = more.communicate(timeout=30)
    assert more.returncode != 0 and "OUT_OF_MEMORY" in out + err


def test_without_a_shm_at_all(daemon, apart, tenant) -> None:
    node = daemon()
    quota(node, tenant, memory="2GiB")
    process = apart(
        tenant,
        "load",
        "--json",
        "--memory",
        "2GiB",
        "--seconds",
        "1",
        preparation="mount -o remount,ro /dev/shm",
    )
    out, err = process.communicate(timeout=30)
    assert process.returncode != 0 and "OUT_OF_MEMORY" in out + err


def test_books_survive_the_daemon(daemon, apart, tenant) -> None:
    """To register again must not drop the lock that says that the process lives."""
    node = daemon()
    quota(node, tenant, memory="2GiB")
    process = apart(tenant, "load", "--json", "--memory", "256MiB", "--seconds", "30")
    eventually(lambda: used_bytes(node, tenant) >= 256 * MIB)
    node.process.send_signal(signal.SIGKILL)
    node.process.wait(timeout=10)
    node = daemon()
    eventually(lambda: (node.tenant(tenant) or {}).get("workers"))
    assert used_bytes(node, tenant) >= 256 * MIB
    process.send_signal(signal.SIGKILL)
    eventually(lambda: used_bytes(node, tenant) == 0)


def used_bytes(node: Any, tenant: str) -> int:
    found = node.tenant(tenant)
    return sum(gpu.get("memory_used_bytes", 0) for gpu in found["gpus"]) if found else 0


def test_root_cannot_write_to_the_daemon_s_files_that_it_was_given(daemon, run_dir: Path, tenant) -> None:
    daemon()
    policy, usage, state = files_of(run_dir / "daemon.sock", tenant)
    for given in (policy, state):
        with pytest.raises(OSError) as refused:
            os.open(f"/proc/self/fd/{given}", os.O_RDWR)
        if refused.value.errno != errno.EROFS:
            pytest.skip("the daemon may not make mounts here")
        with pytest.raises(PermissionError):
            mmap.mmap(given, os.fstat(given).st_size)
    os.close(os.open(f"/proc/self/fd/{usage}", os.O_RDWR))
    os.lseek(usage, 77, os.SEEK_SET)
    other = files_of(run_dir / "daemon.sock", tenant)
    for fd in (policy, usage, state, *other):
        os.close(fd)


def test_who_did_not_ask_is_sent_no_files(daemon, run_dir: Path, tenant) -> None:
    node = daemon()
    status, _, _ = node.ask(
        "POST", "/v1/workers", {"version": lib.GL_LAYOUT_VERSION, "pid": os.getpid(), "tenant": tenant}
    )
    assert status == 200


def files_of(path: Path, tenant: str) -> list[int]:
    connection = UnixConnection(str(path))
    connection.connect()
    body = json.dumps({"version": lib.GL_LAYOUT_VERSION, "pid": os.getpid(), "tenant": tenant, "files": True})
    connection.request("POST", "/v1/workers", body)
    data, fds, _, _ = socket.recv_fds(connection.sock, 4096, 8)
    assert data.startswith(b"HTTP/1.1 103 ")
    while b"Gpulimit-Worker" not in data:
        data += connection.sock.recv(4096)
    connection.close()
    assert len(fds) == 3
    return fds


# ---- what the node says, the environment cannot unsay ----

NODE = """
mkdir -p "$WORK/upper"
mount -t tmpfs none "$WORK/upper"
mkdir "$WORK/upper/u" "$WORK/upper/w"
mount -t overlay overlay -o "lowerdir=/usr/lib,upperdir=$WORK/upper/u,workdir=$WORK/upper/w" /usr/lib
mkdir -p /usr/lib/gpulimit
printf '%s\\n' "$SAID" > /usr/lib/gpulimit/daemon
exec "$@"
"""


@pytest.fixture
def in_node(built: Built, daemon_env: dict[str, str], tmp_path: Path, run_process) -> Callable[..., Any]:
    """Run the workload where the node says that there is a daemon."""

    def run(said: str, *arguments: str, **variables: str) -> Any:
        env = daemon_env | {"LD_LIBRARY_PATH": str(built.sim), "WORK": str(tmp_path), "SAID": said}
        limited = ["env", f"LD_PRELOAD={built.library}", *(f"{k}={v}" for k, v in variables.items())]
        python = [sys.executable, "-P", "-m", "limiter", "load", "--json", "--seconds", "0.3", *arguments]
        return run_process([*APART[:-1], "-ec", NODE, "sh", *limited, *python], env=env)

    return run


def test_a_program_cannot_leave_the_daemon_that_its_node_names(daemon, in_node, run_dir, tenant) -> None:
    node = daemon()
    quota(node, tenant, memory="2GiB")
    for loose in ({}, {"GPULIMIT_SOCKET": "/nowhere", "GPULIMIT_ON_LOSS": "open"}):
        done = in_node(str(run_dir / "daemon.sock"), "--memory", "3GiB", GPULIMIT_TENANT=tenant, **loose)
        assert done.returncode != 0 and "OUT_OF_MEMORY" in done.stdout + done.stderr


def test_a_daemon_that_the_node_names_and_that_is_away_is_no_way_out(in_node, run_dir, tenant) -> None:
    loose = {"GPULIMIT_ON_LOSS": "open", "GPULIMIT_WAIT": "0.2"}
    done = in_node(str(run_dir / "none.sock"), GPULIMIT_TENANT=tenant, **loose)
    assert done.returncode != 0 and "does not answer" in done.stderr


@pytest.mark.parametrize("said", ["", "relative", "/" + "x" * 200])
def test_nonsense_of_the_node_is_refused(in_node, tenant, said: str) -> None:
    done = in_node(said, GPULIMIT_TENANT=tenant, GPULIMIT_ON_LOSS="open")
    assert done.returncode != 0 and "/usr/lib/gpulimit/daemon" in done.stderr
