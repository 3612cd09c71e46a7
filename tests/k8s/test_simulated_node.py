# SPDX-License-Identifier: Apache-2.0
"""A node with two simulated cards on which twelve pods come and go in random order, while the daemon is
killed and the API server goes away: after every few steps each process has its own pod's quota, and nothing
is left of pods that are gone.

GPULIMIT_TEST_LONG=1 takes ten times as many steps; GPULIMIT_TEST_SEED=N another course.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import Client, Daemon, eventually
from tests.k8s.fake_api import FakeApi, pod, restarted

MIB = 1 << 20
MOST_PODS = 12
STEPS = 400 if os.environ.get("GPULIMIT_TEST_LONG") else 40
SEED = int(os.environ.get("GPULIMIT_TEST_SEED", "1"))
SHM = Path("/dev/shm")


@dataclass
class Model:
    """A pod as it should be."""

    item: dict[str, Any]
    memory: int
    run: int = 0
    processes: list[Client] = field(default_factory=list)

    @property
    def uid(self) -> str:
        return str(self.item["metadata"]["uid"])

    @property
    def tenant(self) -> str:
        return f"pod-{self.uid}"

    def living(self) -> list[Client]:
        return [one for one in self.processes if one.process.poll() is None]


class Course:
    """A random walk."""

    def __init__(
        self,
        start_daemon: Callable[[], Daemon],
        api: FakeApi,
        kubelet: FakeApi,
        in_pod: Callable[..., Client],
    ) -> None:
        self.random = random.Random(SEED)  # noqa: S311
        self.start_daemon, self.api, self.kubelet, self.in_pod = start_daemon, api, kubelet, in_pod
        self.node = start_daemon()
        self.gpus = self.node.state()["gpus"]
        self.pods: dict[str, Model] = {}
        self.gone: set[str] = set()
        self.number = 0
        self.done: list[str] = []

    def put(self, item: dict[str, Any]) -> dict[str, Any]:
        self.kubelet.put(item)
        return self.api.put(item)

    def some_pod(self) -> Model:
        return self.random.choice(list(self.pods.values()))

    def step(self) -> None:
        """Do something that can be done now."""
        steps = [self.create] if len(self.pods) < MOST_PODS else []
        if self.pods:
            steps += [self.spawn, self.spawn, self.kill, self.annotate, self.annotate, self.restart_container]
            steps += [self.delete, self.finish]
        if self.random.random() < 0.3:
            steps += [self.restart_daemon, self.api_away, self.lose_events, self.kubelet_away]
        chosen = self.random.choice(steps)
        self.done.append(chosen.__name__)
        chosen()

    def create(self) -> None:
        self.number += 1
        memory = self.random.randrange(64, 4096) * MIB
        name = f"pod-{self.random.randrange(MOST_PODS)}"  # names come again, with other UIDs
        if name in self.pods:
            return
        item = self.put(pod(name, annotations={"memory": str(memory)}))
        self.pods[name] = made = Model(item, memory)
        self.add(made)

    def spawn(self) -> None:
        self.add(self.some_pod())

    def add(self, model: Model) -> None:
        if len(model.living()) < 3:
            one = self.in_pod(model.item, run=model.run)
            assert one.answer["tenant"] == model.tenant
            gpu = self.random.choice(self.gpus)
            one.tell(order="device", gpu=gpu["uuid"], card_bytes=gpu["memory_bytes"])
            model.processes.append(one)

    def kill(self) -> None:
        living = self.some_pod().living()
        if living:
            self.random.choice(living).kill()

    def kill_all(self, model: Model) -> None:
        for one in model.living():
            one.kill()

    def annotate(self) -> None:
        model = self.some_pod()
        model.memory = self.random.randrange(64, 4096) * MIB
        model.item["metadata"]["annotations"]["gpulimit.io/memory"] = str(model.memory)
        self.put(model.item)

    def restart_container(self) -> None:
        model = self.some_pod()
        self.kill_all(model)
        model.run += 1
        model.item = self.put(restarted(model.item, "main", model.run))
        self.add(model)

    def delete(self) -> None:
        model = self.some_pod()
        name = model.item["metadata"]["name"]
        if self.random.random() < 0.7:
            self.kill_all(model)
        self.kubelet.delete(name)
        self.api.delete(name)
        self.kill_all(model)
        del self.pods[name]
        self.gone.add(model.tenant)

    def finish(self) -> None:
        model = self.some_pod()
        self.kill_all(model)
        self.put({**model.item, "status": {**model.item["status"], "phase": "Succeeded"}})
        eventually(lambda: self.node.tenant(model.tenant) is None)
        self.kubelet.delete(model.item["metadata"]["name"])
        self.api.delete(model.item["metadata"]["name"])
        del self.pods[model.item["metadata"]["name"]]
        self.gone.add(model.tenant)

    def restart_daemon(self) -> None:
        self.node.stop(self.random.choice((signal.SIGTERM, signal.SIGKILL)))
        for model in self.pods.values():
            if self.random.random() < 0.2:
                self.kill_all(model)
        self.node = self.start_daemon()
        for model in self.pods.values():
            for one in model.living():  # as the library does
                eventually(lambda: one.tell(order="register", tenant="", environment={})["status"] == 200)  # noqa: B023

    def api_away(self) -> None:
        self.api.stop()
        for _ in range(self.random.randrange(3)):
            self.annotate() if self.pods else self.create()
        if self.pods and self.random.random() < 0.5:
            self.delete()
        if self.random.random() < 0.5:
            self.api.compact()
        self.api.start()

    def lose_events(self) -> None:
        """Let the API server forget to tell, which shows in its next list."""
        self.api.is_deaf = True
        for _ in range(2):
            self.random.choice((self.delete, self.annotate) if self.pods else (self.create,))()
        self.api.is_deaf = False
        self.api.stop()
        self.api.compact()
        self.api.start()

    def kubelet_away(self) -> None:
        self.kubelet.stop()
        self.spawn() if self.pods else self.create()
        self.kubelet.start()

    # ---- what must hold ----

    def wrong(self) -> list[str]:
        """Return what is not as it should be."""
        shown = {one["tenant"]: one for one in self.node.state()["tenants"]}
        wrong = [f"{name} is still there" for name in shown if name in self.gone]
        for name, model in self.pods.items():
            pids = {one.process.pid for one in model.living()}
            tenant = shown.get(model.tenant)
            if tenant is None:
                wrong += [f"{name} is missing"] if pids else []
                continue
            if {worker["host_pid"] for worker in tenant["workers"]} != pids:
                wrong.append(f"{name} has other processes")
            if pids and tenant["pod"] != f"default/{name}":
                wrong.append(f"{name} is called {tenant['pod']}")
            if {gpu["memory_limit_bytes"] for gpu in tenant["gpus"]} != {model.memory}:
                wrong.append(f"{name} may have other than {model.memory}")
            wrong += [
                f"{name}: a process of it sees another limit"
                for one in model.living()
                if {d["memory_limit_bytes"] for d in one.tell(order="look")["devices"]} != {model.memory}
            ]
        return wrong

    def series(self) -> dict[str, set[float]]:
        """Return the memory quotas on the metrics page, by pod."""
        found: dict[str, set[float]] = {}
        with urllib.request.urlopen(f"http://127.0.0.1:{self.node.metrics_port}/metrics") as answer:
            for line in answer.read().decode().splitlines():
                match = re.match(r'gpulimit_client_memory_quota_bytes{.*pod="([^"]+)".*} (\S+)', line)
                if match:
                    found.setdefault(match[1], set()).add(float(match[2]))
        return found

    def check(self) -> None:
        end = time.monotonic() + 30
        while (wrong := self.wrong()) and time.monotonic() < end:
            time.sleep(0.05)
        assert not wrong, (SEED, wrong, self.done[-12:])

    def check_series(self) -> None:
        wanted = {name: {float(model.memory)} for name, model in self.pods.items() if model.living()}
        eventually(lambda: self.series() == wanted)

    def leftovers(self) -> list[str]:
        """Return the shared memory of pods that are gone."""
        return [path.name for name in self.gone for path in SHM.glob(f"gpulimit.?.{name}*")]


@pytest.fixture
def kubelet() -> Iterator[FakeApi]:
    server = FakeApi()
    yield server
    server.close()


@pytest.mark.slow
@pytest.mark.timeout(120 if STEPS < 100 else 1800)
def test_pods_come_and_go(
    daemon: Callable[..., Daemon],
    daemon_env: dict[str, str],
    fake_api: FakeApi,
    kubelet: FakeApi,
    in_pod: Callable[..., Client],
) -> None:
    daemon_env["GPULIMIT_SIM_PROFILE"] = "two-h100"

    def start() -> Daemon:
        return daemon(
            kubernetes="on",
            node_name="node-a",
            kube_api=fake_api.url,
            kubelet_url=kubelet.url,
            nvml_interval="200ms",
        )

    course = Course(start, fake_api, kubelet, in_pod)
    assert len(course.gpus) == 2
    for number in range(STEPS):
        course.step()
        if number % 4 == 3:
            course.check()
        if number % 20 == 19:
            course.check_series()
    course.check()
    while course.pods:
        course.delete()
    eventually(lambda: not course.node.state()["tenants"])
    eventually(lambda: course.series() == {})
    assert course.leftovers() == []
