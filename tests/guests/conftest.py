# SPDX-License-Identifier: Apache-2.0
"""Guests and collectors.

- `machine(name, behaviour)`: a guest behind a monitor's socket, as Firecracker has them; its exporter can be
  changed, stopped and started.
- `agent(…)`: a real `gpulimit guest-agent` on a simulated machine.
- `collector(guests, …)`: a real `gpulimit guest-collector` that asks these.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hypervisor.scraper.parser import Page, parse
from tests.conftest import Built, StartProcess, clean_environ
from tests.daemon.conftest import DEADLINE_S, eventually, free_port
from tests.metrics.conftest import get
from tests.remote.exporters import Behaviour, Monitor

PORT = 9402
VALUES = 11
"""Of each GPU."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short name: sockets' paths are short."""
    made = Path(tempfile.mkdtemp(prefix="guests-"))
    yield made
    shutil.rmtree(made)


@dataclass
class Machine:
    """A guest; `exporter` is what answers at its port, None: nobody."""

    name: str
    path: Path
    namespace: str = "ml"
    extra: dict[str, str] = field(default_factory=dict)
    monitor: Monitor | None = None

    @property
    def address(self) -> str:
        return f"hvsock://{self.path}:{PORT}"

    def start(self, behaviour: Behaviour | None) -> None:
        self.stop()
        self.monitor = Monitor(self.path, {PORT: behaviour} if behaviour else {})

    def stop(self) -> None:
        if self.monitor is not None:
            self.monitor.close()
            self.monitor = None

    def answer(self, behaviour: Behaviour | None) -> None:
        assert self.monitor is not None
        self.monitor.ports = {PORT: behaviour} if behaviour else {}


@pytest.fixture
def machine(folder: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def start(name: str, behaviour: Behaviour | None = None, **options: Any) -> Machine:
        one = Machine(name, folder / f"{name}.sock", **options)
        one.start(behaviour)
        made.append(one)
        return one

    yield start
    for one in made:
        one.stop()


def relay(path: Path) -> Behaviour:
    """Connect a guest's port to a Unix socket, as a monitor does with a real guest's."""

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def behave(peer: socket.socket) -> None:
        with socket.socket(socket.AF_UNIX) as inner:
            inner.connect(str(path))
            back = threading.Thread(target=pump, args=(inner, peer))
            back.start()
            pump(peer, inner)
            back.join()

    return behave


class Relay(Monitor):
    """A monitor that hands on the request untouched."""

    def _connect(self, peer: socket.socket) -> None:
        line = b""
        while not line.endswith(b"\n") and (byte := peer.recv(1)):
            line += byte
        behaviour = self.ports.get(int(line.split()[1]))
        if behaviour is not None:
            peer.sendall(b"OK 1073741824\n")
            behaviour(peer)


@dataclass
class Agent:
    """A running agent."""

    process: subprocess.Popen[str]
    log: Path

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=DEADLINE_S)
        return self.log.read_text()


@pytest.fixture
def agent_env(built: Built, tmp_path: Path) -> dict[str, str]:
    return clean_environ() | {
        "GPULIMIT_LIB_DIR": str(built.lib),
        "GPULIMIT_SIM_STATE": str(tmp_path / "guest.state"),
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def agent(
    agent_env: dict[str, str], tmp_path: Path, start_process: StartProcess
) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def start(*arguments: str, env: Mapping[str, str] | None = None, is_simulated: bool = True) -> Agent:
        log = tmp_path / f"agent-{len(made)}.log"
        argv = [sys.executable, "-P", "-m", "hypervisor.guests.agent", *arguments]
        with log.open("w") as out:
            process = start_process(
                [*argv, *(["--sim"] if is_simulated else [])],
                env=agent_env | dict(env or {}),
                stdout=out,
                stderr=out,
            )
        made.append(Agent(process, log))
        return made[-1]

    yield start
    for one in made:
        text = one.stop() if one.process.poll() is None else one.log.read_text()
        assert "Traceback" not in text and "Warning" not in text, text


class Collector:
    """A running collector."""

    def __init__(self, process: subprocess.Popen[str], port: int, guests: Path, log: Path) -> None:
        self.process, self.guests, self.log = process, guests, log
        self.address = f"127.0.0.1:{port}"

    def page(self, path: str = "/metrics") -> tuple[int, str]:
        return get(f"http://{self.address}{path}")

    def metrics(self) -> Page:
        try:
            status, text = self.page()
        except OSError:
            return Page()
        assert status == 200
        page = parse(text.encode())
        assert not page.dropped and not page.repaired
        return page

    def until(self, check: Callable[[Page], Any], *, within_s: float = 20.0) -> Any:
        return eventually(lambda: check(self.metrics()), within_s=within_s)

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=DEADLINE_S)
        return self.log.read_text()

    def ask(self, *machines: Machine) -> None:
        """Write down whom to ask, and have that read."""
        fresh = self.guests.with_suffix(".new")
        fresh.write_text(listing(*machines))
        fresh.rename(self.guests)
        self.process.send_signal(signal.SIGHUP)


def listing(*machines: Machine) -> str:
    lines = ['node = "node-1"']
    for one in machines:
        lines += ["[[guest]]", f'namespace = "{one.namespace}"', f'name = "{one.name}"']
        lines += [
            f"{key} = {json.dumps(value)}" for key, value in {"address": one.address, **one.extra}.items()
        ]
    return "\n".join([*lines, ""])


@pytest.fixture
def collector(
    tmp_path: Path, folder: Path, start_process: StartProcess
) -> Iterator[Callable[..., Collector]]:
    made: list[Collector] = []

    def start(*machines: Machine, at_port: int = 0, **options: str) -> Collector:
        guests = folder / f"guests-{len(made)}.toml"
        guests.write_text(listing(*machines))
        port = at_port or free_port()
        settings = {
            "guests": str(guests),
            "metrics_addr": f"127.0.0.1:{port}",
            "period": "250ms",
            "timeout": "2s",
            "lock": str(folder / "lock"),
            **options,
        }
        flags = [f for name, value in settings.items() for f in (f"--{name.replace('_', '-')}", value)]
        log = tmp_path / f"collector-{len(made)}.log"
        with log.open("w") as out:
            process = start_process(
                [sys.executable, "-P", "-m", "hypervisor.guests.collector_main", *flags],
                env=clean_environ() | {"PYTHONWARNINGS": "error"},
                stdout=out,
                stderr=out,
            )
        made.append(Collector(process, port, guests, log))
        return made[-1]

    yield start
    for one in made:
        text = one.stop() if one.process.poll() is None else one.log.read_text()
        assert "Traceback" not in text and "Warning" not in text, text


def of(page: Page, metric: str, /, **labels: str) -> list[float]:
    """Return the values of a metric whose labels are these."""
    return [value for has, value in page.of(metric) if labels.items() <= has.items()]


def series(page: Page, machine: str) -> int:
    """Return how many figures of a machine's GPUs there are."""
    return sum(
        len(of(page, name, name=machine)) for name in page.samples if name.startswith("kubevirt_vmi_gpu_")
    )
