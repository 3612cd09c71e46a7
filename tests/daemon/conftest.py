# SPDX-License-Identifier: Apache-2.0
"""A daemon of the test's own, on a simulated machine, and clients of it.

- `daemon(…)`: starts one (options as keywords); ends with the test. Restart it with `stop()` and
`daemon()`. - `client(tenant, …)`: a real process that registers, claims a slot in its tenant's segment as
the library does, and
  does what it is told (tests/daemon/client.py).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Built, StartProcess, clean_environ, remove_segments
from tests.sim.conftest import program as program  # a fixture here too
from tests.sim.sharing import PROGRAM, Member

CLIENT = Path(__file__).with_name("client.py")
HOLDER = Path(__file__).with_name("holder.py")
DEADLINE_S = 10.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float = DEADLINE_S) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path: str, method: str, target: str, body: object = None) -> tuple[int, dict[str, str], Any]:
    """Return status, headers in lower case, and the JSON that was answered."""
    connection = UnixConnection(path)
    try:
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, target, raw)
        answer = connection.getresponse()
        data = answer.read()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        is_json = headers.get("content-type", "").startswith("application/json")
        return answer.status, headers, json.loads(data) if is_json else data
    finally:
        connection.close()


def eventually(check: Callable[[], Any], *, within_s: float = DEADLINE_S) -> Any:
    """Return the first true answer; fail when there is none in time."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        answer = check()
        if answer:
            return answer
        time.sleep(0.01)
    pytest.fail(f"never true within {within_s} s: {check}")


@dataclass
class Daemon:
    """A running daemon."""

    process: subprocess.Popen[str]
    socket: str
    metrics_port: int
    log: Path

    def ask(self, method: str, target: str, body: object = None) -> tuple[int, dict[str, str], Any]:
        return ask(self.socket, method, target, body)

    def state(self) -> dict[str, Any]:
        status, _, state = self.ask("GET", "/v1/state")
        assert status == 200
        return state

    def tenant(self, name: str) -> dict[str, Any] | None:
        return next((t for t in self.state()["tenants"] if t["tenant"] == name), None)

    def stop(self, number: int = signal.SIGTERM) -> str:
        """End it; return what it logged."""
        self.process.send_signal(number)
        try:
            self.process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler writes down where it is
            self.process.wait(timeout=DEADLINE_S)
            pytest.fail(f"the daemon did not end:\n{self.log.read_text()}", pytrace=False)
        return self.log.read_text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def daemon_env(built: Built, tmp_path: Path) -> dict[str, str]:
    """Environment of a daemon on a simulated machine of the test's own."""
    return clean_environ() | {
        "GPULIMIT_LIB_DIR": str(built.lib),
        "GPULIMIT_SIM_STATE": str(tmp_path / "sim.state"),
        "PYTHONWARNINGS": "error",
        "PYTHONFAULTHANDLER": "1",
    }


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Return a folder for the socket that every user can reach, with a short name."""
    folder = Path(tempfile.mkdtemp(prefix="gpulimit-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def daemon(
    daemon_env: dict[str, str], tmp_path: Path, run_dir: Path, tenant: str, start_process: StartProcess
) -> Iterator[Callable[..., Daemon]]:
    """Start daemons: all of a test use one socket, state folder and segment names."""
    running: list[Daemon] = []
    metrics_port = free_port()

    def start(
        *arguments: str,
        is_awaited: bool = True,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        **options: str,
    ) -> Daemon:
        settings = {
            "socket": str(run_dir / "daemon.sock"),
            "state_dir": str(tmp_path / "state"),
            "state_segment": f"gpulimit.s.{tenant}",
            "metrics_addr": f"127.0.0.1:{metrics_port}",
            "log_level": "debug",
            **options,
        }
        flags = [f for name, value in settings.items() for f in (f"--{name.replace('_', '-')}", value)]
        log = tmp_path / f"daemon-{len(running)}.log"
        argv = [*prefix, sys.executable, "-P", "-m", "hypervisor", "--sim", *flags, *arguments]
        with log.open("w") as output:
            process = start_process(argv, env=daemon_env | dict(env or {}), stdout=output, stderr=output)
        made = Daemon(process, settings["socket"], metrics_port, log)
        running.append(made)
        if is_awaited:
            eventually(lambda: is_ready(made))
        return made

    yield start
    for one in running:
        text = one.stop() if one.process.poll() is None else one.log.read_text()
        assert "Traceback" not in text, text
        assert "Warning" not in text, text


def is_ready(daemon: Daemon) -> bool:
    if daemon.process.poll() is not None:
        pytest.fail(f"the daemon ended with {daemon.process.returncode}:\n{daemon.log.read_text()}")
    try:
        return bool(daemon.state()["gpus"])
    except (ConnectionError, FileNotFoundError):
        return False


@dataclass
class Client:
    """A process that has registered, or tried to."""

    process: subprocess.Popen[str]
    answer: dict[str, Any] = field(default_factory=dict)

    def tell(self, **order: Any) -> dict[str, Any]:
        """Give an order; return its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            stderr = self.process.stderr.read() if self.process.stderr else ""
            pytest.fail(f"the client has ended: {stderr}")
        return dict(json.loads(line))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=DEADLINE_S)


@pytest.fixture
def client(run_dir: Path, tenant: str, start_process: StartProcess) -> Callable[..., Client]:
    """Start clients of the test's daemon; `tenant` of the test unless another name is given."""

    def start(
        name: str | None = None,
        *,
        uid: int | None = None,
        is_refused: bool = False,
        prefix: Sequence[str] = (),
        **quota: object,
    ) -> Client:
        environment = {f"GPULIMIT_{k.upper()}": str(v) for k, v in quota.items()}
        argv = [*prefix, sys.executable, str(CLIENT), str(run_dir / "daemon.sock"), str(uid or "")]
        env = clean_environ() | {"PYTHONPATH": str(CLIENT.parents[2])}
        made = Client(start_process(argv, env=env, stdin=subprocess.PIPE))
        wish = tenant if name is None else name
        made.answer = made.tell(order="register", tenant=wish, environment=environment)
        assert is_refused or made.answer["status"] == 200, made.answer
        return made

    return start


@pytest.fixture
def other_tenant(tenant: str) -> Iterator[str]:
    """A second name; its shared memory is removed with the first's."""
    name = f"{tenant}-b"
    yield name
    remove_segments(name)


@dataclass
class SmallShm:
    """A /dev/shm of a test's own, in a mount namespace of its own."""

    prefix: tuple[str, ...]
    """Of a command that is to see it."""
    path: Path
    """Where the test sees it."""

    def used_bytes(self) -> int:
        """Return how much memory is taken."""
        found = os.statvfs(self.path)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def fill(self) -> Path:
        """Take all that is left; return the file that does."""
        path = self.path / "fill"
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        return path


@pytest.fixture
def small_shm(start_process: StartProcess) -> Callable[..., SmallShm]:
    """Make a /dev/shm of a given size; daemons and programs see it with `prefix` before their command."""

    def make(size: str = "8m") -> SmallShm:
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("needs root and unshare, to mount a /dev/shm")
        script = f"mount -t tmpfs -o mode=1777,size={size} none /dev/shm && echo ready && exec sleep 600"
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        holder = start_process(argv, env=clean_environ())
        assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
        prefix = ("nsenter", "--mount", "--target", str(holder.pid))
        return SmallShm(prefix, Path(f"/proc/{holder.pid}/root/dev/shm"))

    return make


@dataclass
class Holder:
    """A program under the library that allocates as told: see holder.py."""

    process: subprocess.Popen[str]

    def tell(self, order: str) -> int:
        """Give an order; return its answer: what the driver returned."""
        self.order(order)
        return self.answer()

    def order(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def answer(self) -> int:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.process.stderr.read() if self.process.stderr else ""
            pytest.fail(f"the program has ended: {said}")
        return int(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=DEADLINE_S)


@pytest.fixture
def holder(
    built: Built, daemon_env: dict[str, str], run_dir: Path, tenant: str, start_process: StartProcess
) -> Callable[..., Holder]:
    """Start programs under the library, of the test's tenant unless another name is given."""

    def start(
        name: str | None = None,
        *,
        prefix: Sequence[str] = (),
        has_daemon: bool = True,
        library: Path | None = None,
        env: Mapping[str, str] | None = None,
        **quota: object,
    ) -> Holder:
        said = {
            "LD_LIBRARY_PATH": str(built.sim),
            "GPULIMIT_TENANT": tenant if name is None else name,
            "GPULIMIT_SIM_PROFILE": "small",
            **({"GPULIMIT_SOCKET": str(run_dir / "daemon.sock")} if has_daemon else {}),
            **{f"GPULIMIT_{k.upper()}": str(v) for k, v in quota.items()},
        }
        preload = f"LD_PRELOAD={library or built.library}"
        argv = [*prefix, "env", preload, sys.executable, "-P", str(HOLDER)]
        made = start_process(argv, env=daemon_env | said | dict(env or {}), stdin=subprocess.PIPE)
        return Holder(made)

    return start


def needs_root() -> pytest.MarkDecorator:
    return pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")


@pytest.fixture
def member(
    built: Built, daemon_env: dict[str, str], run_dir: Path, start_process: StartProcess
) -> Callable[[str], Member]:
    """Start processes of tenants of 1 GiB on the exact small card."""

    def begin(tenant: str) -> Member:
        env = daemon_env | {
            "GPULIMIT_SIM_PROFILE": "small",
            "LD_LIBRARY_PATH": str(built.sim),
            "LD_PRELOAD": str(built.library),
            "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
            "GPULIMIT_TENANT": tenant,
            "GPULIMIT_MEMORY": "1GiB",
        }
        made = Member(start_process([sys.executable, str(PROGRAM)], env=env, stdin=subprocess.PIPE))
        assert made("start") == 0
        return made

    return begin
