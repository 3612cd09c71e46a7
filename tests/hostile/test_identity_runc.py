# SPDX-License-Identifier: Apache-2.0
"""Root in real containers, with and without a user namespace, tries to be more than its container."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from limiter._native import lib

from tests.conftest import StartProcess, clean_environ, remove_segments
from tests.daemon.conftest import Daemon, eventually, needs_root
from tests.hostile.conftest import SYSTEM_PYTHON, WIRE, Attack, Hostile
from tests.hostile.test_identity import LEAVES_A_CONNECTION
from tests.k8s.parts import PARTS

RUNC = PARTS / "runc" if (PARTS / "runc").exists() else shutil.which("runc")
pytestmark = [
    needs_root(),
    pytest.mark.skipif(RUNC is None, reason="not installed: runc"),
    pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason=f"containers here run {SYSTEM_PYTHON}"),
]
DONE, CHANGED, FORBIDDEN = 200, 204, 403
FIRST_UID = 300_000
DEFAULT_CAPABILITIES = (
    *(
        "CHOWN",
        "DAC_OVERRIDE",
        "FSETID",
        "FOWNER",
        "MKNOD",
        "NET_RAW",
        "SETGID",
        "SETUID",
        "SETFCAP",
        "SETPCAP",
    ),
    *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
)
"""Docker's defaults."""
Start = Callable[..., Daemon]


@dataclass
class Container:
    """A container of this test, which ends with it."""

    folder: Path
    start_process: StartProcess
    socket_dir: Path
    is_mapped: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex * 2)

    @property
    def tenant(self) -> str:
        return f"container-{self.id[:12]}"

    def run(self, text: str, settings: Mapping[str, Any] | None = None) -> Attack:
        """Start it with a program of Python's, after wire.py."""
        root = self.folder / "rootfs"
        root.mkdir(parents=True)
        if self.is_mapped:
            os.chown(root, FIRST_UID, FIRST_UID)  # its root makes the places for mounts
        program = self.folder / "program.py"
        program.write_text(f"{WIRE.read_text()}\n\n{text}")
        told = {"socket": str(self.socket_dir / "daemon.sock"), "version": lib.GL_LAYOUT_VERSION}
        environment = [f"ATTACK={json.dumps(told | dict(settings or {}))}"]
        config = self.config([str(SYSTEM_PYTHON), "-I", "-B", str(program)], environment)
        (self.folder / "config.json").write_text(json.dumps(config))
        argv = [str(RUNC), "--root", str(self.folder / "state"), "run", "--bundle", str(self.folder), self.id]
        return Attack(self.start_process(argv, env=clean_environ(), stdin=subprocess.PIPE))

    def config(self, argv: list[str], environment: list[str]) -> dict[str, Any]:
        shown = [Path(p) for p in ("/usr", "/lib", "/lib64", "/bin") if Path(p).exists()]
        binds = [(str(p), str(p.resolve()), "ro") for p in shown]
        binds.append((str(self.socket_dir), str(self.socket_dir), "rw"))
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"}]
        mounts += [
            {"destination": at, "source": source, "type": "bind", "options": ["rbind", mode]}
            for at, source, mode in binds
        ]  # fmt: skip
        kinds = ["mount", "pid", "ipc", "uts", "cgroup", *(["user"] if self.is_mapped else [])]
        names = [f"CAP_{name}" for name in DEFAULT_CAPABILITIES]
        mapped = [{"containerID": 0, "hostID": FIRST_UID, "size": 65536}]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "args": argv,
                "cwd": "/",
                "env": ["PATH=/usr/bin:/bin", *environment],
                "user": {"uid": 0, "gid": 0},
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), names),
            },
            "root": {"path": "rootfs"},
            "mounts": mounts,
            "linux": {
                "cgroupsPath": f"/gpulimit-test-{os.getpid()}/{self.id}",
                "namespaces": [{"type": kind} for kind in kinds],
                **({"uidMappings": mapped, "gidMappings": mapped} if self.is_mapped else {}),
            },
        }

    def remove(self) -> None:
        for order in (["kill", self.id, "KILL"], ["delete", "--force", self.id]):
            argv = [str(RUNC), "--root", str(self.folder / "state"), *order]
            subprocess.run(argv, capture_output=True, timeout=20, check=False)
        remove_segments(self.tenant)


@pytest.fixture(params=[False, True], ids=["root is root", "root is a user"])
def container(
    run_dir: Path, start_process: StartProcess, request: pytest.FixtureRequest
) -> Iterator[Container]:
    made = Container(run_dir / "bundle", start_process, run_dir, request.param)
    yield made
    made.remove()


@pytest.fixture(scope="module", autouse=True)
def can_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Skip where runc cannot make containers, and remove what groups it left."""
    yield
    for top in Path("/sys/fs/cgroup").glob(f"**/gpulimit-test-{os.getpid()}"):
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()


def first(one: Attack) -> dict[str, Any]:
    """Return what a container says first; skip where it could not be made."""
    assert one.process.stdout is not None and one.process.stderr is not None
    line = one.process.stdout.readline()
    if not line:
        said = one.process.stderr.read()
        if "not permitted" in said or "cgroup" in said:
            pytest.skip(f"runc cannot run here: {said}")
        pytest.fail(said)
    return dict(json.loads(line))


def test_a_container_is_a_tenant_of_its_own(daemon: Start, container: Container, client: Any) -> None:
    node = daemon()
    client(memory="1GiB")
    one = container.run(
        """
connection = dial()
said = wish("mine", {"GPULIMIT_COMPUTE": "30"}, files=True, pod_name="victim", pod_namespace="kube-system")
connection.sendall(request("POST", "/v1/workers", said))
status, headers, answer, files = read_answer(connection)
def tried(what):
    try:
        what()
        return "done"
    except OSError as error:
        return error.errno
name = f"/proc/self/fd/{files[0]}"
say(pid=os.getpid(), uid=os.getuid(), status=status, tenant=headers["gpulimit-tenant"], files=len(files),
    policy=[tried(lambda: os.open(name, os.O_RDWR)), tried(lambda: os.truncate(name, 0))],
    seen=[t["tenant"] for t in ask("GET", "/v1/state")[2]["tenants"]])
hear()
"""
    )
    said = first(one)
    refused = {30} if "no read-only mount" not in node.log.read_text() else {0, 13, 30, "done"}
    assert set(said.pop("policy")) <= refused | {1, 13, 26}
    expected = {"pid": 1, "uid": 0, "status": DONE, "files": 3, "seen": [container.tenant]}
    assert said == expected | {"tenant": container.tenant}
    shown = node.tenant(container.tenant)
    assert shown["uid"] == (FIRST_UID if container.is_mapped else 0)
    assert (shown["pod"], shown["pod_uid"]) == ("", None)
    one.tell(None)
    eventually(lambda: not node.tenant(container.tenant)["workers"])


@pytest.mark.parametrize("is_collected", [True, False])
def test_root_of_a_container_is_no_operator(
    daemon: Start, container: Container, client: Any, tenant: str, is_collected: bool
) -> None:
    node = daemon()
    client(memory="1GiB")
    settings = {"call": f"/v1/tenants/{tenant}/suspend", "is_collected": is_collected}
    one = container.run(LEAVES_A_CONNECTION, settings)
    assert first(one) == {"alive": FORBIDDEN}
    assert one.heard() == {"ended": [FORBIDDEN, FORBIDDEN]}
    assert not node.tenant(tenant)["suspended"]
    one.tell(None)


def test_root_of_a_container_with_a_name_of_any_kind_is_no_operator(
    daemon: Start, container: Container, client: Any, tenant: str
) -> None:
    """Its control group looks like a plain process's; its namespaces do not."""
    node = daemon()
    client(memory="1GiB")
    container.id = f"web-{uuid.uuid4().hex[:8]}"
    settings = {"call": f"/v1/tenants/{tenant}/suspend", "is_collected": True}
    one = container.run(LEAVES_A_CONNECTION, settings)
    assert first(one) == {"alive": FORBIDDEN}
    assert one.heard() == {"ended": [FORBIDDEN, FORBIDDEN]}
    assert not node.tenant(tenant)["suspended"]
    one.tell(None)


def test_a_containers_connection_does_not_speak_for_the_nodes_next_process_of_its_pid(
    daemon: Start, container: Container, attack: Hostile, client: Any, tenant: str
) -> None:
    node = daemon()
    client(memory="1GiB")
    inside = container.run(
        f"""
read_end, write_end = os.pipe()
if os.fork() == 0:
    s = dial()
    headers = register("", {{"GPULIMIT_COMPUTE": "1"}})[1]
    if os.fork() == 0:
        os.close(write_end)
        os.read(read_end, 1)
        hear()
        say(answers=[ask("POST", "/v1/tenants/{tenant}/suspend", on=s)[0], ask("GET", "/v1/state", on=s)[0]])
        os._exit(0)
    say(pid=int(headers["gpulimit-host-pid"]))
    os._exit(0)
os.wait()
os.close(write_end)
os.wait()
"""
    )
    pid = first(inside)["pid"]
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    root = attack(
        f"""
child = fork_as({pid})
if child == 0:
    say(pid=os.getpid(), operator=ask("GET", "/v1/state")[2]["daemon"]["may_change"])
    hear()
    os._exit(0)
os.waitpid(child, 0)
""",
        uid=None,
    )
    assert root.heard() == {"pid": pid, "operator": True}
    inside.tell(None)
    assert inside.heard() == {"answers": [FORBIDDEN, FORBIDDEN]}
    assert not node.tenant(tenant)["suspended"]
    root.tell(None)


def test_a_group_that_a_container_makes_below_its_own_is_the_containers(
    daemon: Start, container: Container, attack: Hostile
) -> None:
    """Root in a user namespace owns its container's group, and could name one like a pod."""
    node = daemon()
    inside = container.run("say(here=True); hear(); say(answer=register()[1]['gpulimit-tenant']); hear()")
    first(inside)
    victim = "1a2b3c4d-0000-4000-8000-00000000000a"
    pid = next(
        int(p)
        for top in Path("/sys/fs/cgroup").glob(f"**/gpulimit-test-{os.getpid()}/{container.id}")
        for p in (top / "cgroup.procs").read_text().split()
    )
    made = []
    for top in Path("/sys/fs/cgroup").glob(f"**/gpulimit-test-{os.getpid()}/{container.id}"):
        if top.parent.parent.name == "cpuset":
            continue
        os.chown(top, FIRST_UID, FIRST_UID)
        below = top / f"pod{victim}"
        below.mkdir()
        (below / "cgroup.procs").write_text(str(pid))
        made.append((top, below))
    inside.tell(None)
    assert inside.heard() == {"answer": container.tenant}
    assert node.tenant(f"pod-{victim}") is None
    for top, below in made:
        (top / "cgroup.procs").write_text(str(pid))
        below.rmdir()
    inside.tell(None)
