# SPDX-License-Identifier: Apache-2.0
"""Containers of one pod under several users: they share the pod's quota and books, and nobody else does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from limiter import segment
from tests.conftest import Built, StartProcess, remove_segments
from tests.daemon.conftest import Daemon, eventually, needs_root
from tests.memory_client import KINDS, OK, OUT_OF_MEMORY, PLAIN, MemoryClient

pytestmark = needs_root()
MIB, GIB = 1 << 20, 1 << 30
C = Path(__file__).resolve().parent.parent / "c"
FAKE_CGROUPS = Path(__file__).resolve().parent / "cgroups"
USERS = (0, 1234, 2345)
Start = Callable[..., MemoryClient]


@pytest.fixture
def pod() -> Iterator[str]:
    uid = str(uuid.uuid4())
    yield uid
    remove_segments(f"pod-{uid}")


@pytest.fixture
def container() -> Iterator[str]:
    name = uuid.uuid4().hex * 2
    yield name
    remove_segments(f"container-{name[:12]}")


def in_pod(pod: str, container: str = "c") -> str:
    return f"/kubepods/besteffort/pod{pod}/{container * 64}"


@pytest.fixture
def card(run_dir: Path) -> dict[str, str]:
    """A simulated machine, with a card of 4 GiB, that every user may use."""
    folder = run_dir / "machine"
    folder.mkdir(mode=0o755)
    state = folder / "state"
    state.touch()
    state.chmod(0o666)
    return {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_SIM_STATE": str(state)}


@pytest.fixture
def node(daemon: Callable[..., Daemon], card: dict[str, str], tmp_path: Path) -> Callable[..., Daemon]:
    """Start daemons that take a process's cgroup from its environment, and give pods 1 GiB."""
    config = tmp_path / "config.toml"
    config.write_text('[default]\nmemory = "1GiB"\n')
    root = FAKE_CGROUPS.parents[2]
    env = card | {"PYTHONPATH": f"{FAKE_CGROUPS}:{root}"}
    return lambda *arguments, **more: daemon("--config", str(config), *arguments, env=env, **more)


@pytest.fixture
def start(
    built: Built, compile_c: Any, daemon_env: dict[str, str], card: dict[str, str], run_dir: Path,
    start_process: StartProcess, tenant: str,
) -> Start:  # fmt: skip
    """Start programs as some user, in some cgroup; library and driver lie where every user can read them."""
    libraries = ("-Wl,--no-as-needed", "-L", str(built.sim), "-lcuda", "-lnvidia-ml", "-pthread")
    flags = ("-D_GNU_SOURCE", f"-I{C}", "-Wno-unused-function", *libraries)
    binary = shutil.copy(compile_c(C / "waiting" / "memory_client.c", *flags, name="memory_client"), run_dir)
    library = shutil.copy(built.library, run_dir)
    sim = shutil.copytree(built.sim, run_dir / "sim", ignore=shutil.ignore_patterns("obj"))

    def begin(user: int, cgroup: str = "", **quota: object) -> MemoryClient:
        env = daemon_env | card | {
            "LD_LIBRARY_PATH": str(sim),
            "LD_PRELOAD": str(library),
            "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
            "GPULIMIT_TENANT": tenant,
            **({"TEST_CGROUP": cgroup} if cgroup else {}),
            **{f"GPULIMIT_{k.upper()}": str(v) for k, v in quota.items()},
        }  # fmt: skip
        process = start_process(
            [binary], env=env, stdin=subprocess.PIPE, user=user, group=user, extra_groups=[], cwd="/"
        )
        return MemoryClient(process)

    return begin


def used(node: Daemon, tenant: str) -> int:
    found = node.tenant(tenant)
    return int(found["gpus"][0].get("memory_used_bytes", -1)) if found else -1


@pytest.mark.parametrize("first", USERS)
def test_users_of_a_pod_share_quota_and_books(node, start, pod, first) -> None:
    here, tenant = node(), f"pod-{pod}"
    users = [first, *(user for user in USERS if user != first)]
    programs = [start(user, in_pod(pod, "abc"[i])) for i, user in enumerate(users)]
    for program in programs:
        assert program.ask("take", PLAIN, 300 * MIB)[0] == OK
    for program in programs:
        assert program.ask("take", PLAIN, 200 * MIB)[0] == OUT_OF_MEMORY
    assert used(here, tenant) == 900 * MIB
    shown = here.tenant(tenant)
    assert sorted(w["host_pid"] for w in shown["workers"]) == sorted(p.process.pid for p in programs)
    assert shown["uid"] == first

    programs[1].process.kill()
    eventually(lambda: used(here, tenant) == 600 * MIB)
    for kind in KINDS.values():
        assert programs[2].ask("take", kind, 8 * MIB)[0] == OK
        assert programs[2].ask("give") == [OK]
    assert programs[2].ask("take", PLAIN, 300 * MIB)[0] == OK
    assert used(here, tenant) >= 900 * MIB


def test_a_user_of_a_pod_finds_what_another_left_dead(node, start, pod) -> None:
    """Also while no daemon clears up."""
    here = node()
    one, two = start(1234, in_pod(pod)), start(2345, in_pod(pod))
    assert one.ask("take", PLAIN, 900 * MIB)[0] == OK
    here.stop(signal.SIGKILL)
    one.process.kill()
    one.process.wait(timeout=5)
    assert two.ask("take", PLAIN, 900 * MIB)[0] == OK
    again = node()
    eventually(lambda: (t := again.tenant(f"pod-{pod}")) and len(t["workers"]) == 1)
    assert used(again, f"pod-{pod}") == 900 * MIB
    three = start(0, in_pod(pod))
    assert three.ask("take", PLAIN, 200 * MIB)[0] == OUT_OF_MEMORY
    assert three.ask("take", PLAIN, 100 * MIB)[0] == OK


def test_users_of_a_container_share_too(node, start, container) -> None:
    here = node()
    cgroup = f"/docker/{container}"
    one, two = start(1234, cgroup), start(0, cgroup)
    assert one.ask("take", PLAIN, 900 * MIB)[0] == OK
    assert two.ask("take", PLAIN, 200 * MIB)[0] == OUT_OF_MEMORY
    assert used(here, f"container-{container[:12]}") == 900 * MIB


def test_the_books_of_a_pod_are_closed_to_its_users_elsewhere(node, start, pod, tenant) -> None:
    """Who is of the pod is handed the books; nobody gets them by name but the user who owns them."""
    node()
    start(1234, in_pod(pod))
    path = segment.path_of(f"pod-{pod}")
    status = path.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (1234, 0o600)
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresuid(2345, 2345, 2345)
        try:
            os.open(path, os.O_RDWR)
        except PermissionError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_outside_pods_and_containers_a_tenant_is_of_one_user(node, start, tenant) -> None:
    here = node()
    start(1234, memory="1GiB")
    with pytest.raises(AssertionError):  # every CUDA call of the other is refused
        start(2345, memory="1GiB")
    assert len(here.tenant(tenant)["workers"]) == 1
    assert here.state()["counts"]["refused"] == 1
