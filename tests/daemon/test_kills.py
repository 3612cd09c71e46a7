# SPDX-License-Identifier: Apache-2.0
"""Daemon and tenants killed at random moments: nobody is stuck, and the books end true to the byte.

GPULIMIT_TEST_KILL_SECONDS says how long (12, or 300 with GPULIMIT_TEST_LONG=1), GPULIMIT_TEST_SEED when.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from limiter import segment
from tests.conftest import Built, StartProcess, remove_segments
from tests.daemon.conftest import Daemon, eventually

C = Path(__file__).resolve().parent.parent / "c"
LONG = os.environ.get("GPULIMIT_TEST_LONG", "") not in ("", "0")
SECONDS = float(os.environ.get("GPULIMIT_TEST_KILL_SECONDS") or (300 if LONG else 12))
STUCK_S = 10.0
"""A worker that makes no step for so long is stuck; one step may wait for memory and for its turn."""
QUOTAS = (
    {"memory": "24MiB", "weight": 1},
    {"memory": "16MiB", "weight": 3, "compute": 60},
    {"memory": "6MiB", "weight": 2, "memory_wait": 1},
)
WORKERS = 2
PROGRESS = struct.Struct("QQQii")


@dataclass
class Worker:
    """One process of a tenant, and what it has written down."""

    tenant: str
    process: subprocess.Popen[str]
    file: Path
    held_bytes: int
    began_s: float = field(default_factory=time.monotonic)
    steps: int = -1
    moved_at_s: float = field(default_factory=time.monotonic)

    def progress(self) -> tuple[int, int, int, int, int]:
        return PROGRESS.unpack(self.file.read_bytes())

    def is_holding(self) -> bool:
        _, _, _, error, is_holding = self.progress()
        assert error == 0, f"a worker of {self.tenant} failed with {error}"
        return bool(is_holding)

    def check(self) -> None:
        """Fail if it has ended by itself, or is stuck."""
        assert self.process.poll() is None, self.process.communicate()
        steps = self.progress()[0]
        now = time.monotonic()
        if steps != self.steps:
            self.steps, self.moved_at_s = steps, now
        assert now - self.moved_at_s < STUCK_S, f"a worker of {self.tenant} is stuck after {steps} steps"


@dataclass
class Scene:
    """The node, and what has happened."""

    start_daemon: Callable[[], Daemon]
    start_worker: Callable[[int], Worker]
    chance: random.Random
    workers: list[Worker] = field(default_factory=list)
    daemon: Daemon | None = None
    daemon_due_s: float = 0.0
    kills: int = 0
    daemons: int = 0
    spent_ns: dict[str, int] = field(default_factory=dict)

    def step(self) -> None:
        """Kill somebody, look at everybody."""
        now = time.monotonic()
        if self.daemon is None:
            if now >= self.daemon_due_s:
                self.daemon, self.daemons = self.start_daemon(), self.daemons + 1
        elif self.chance.random() < 0.15:
            self.daemon.process.kill()
            self.daemon.process.wait(timeout=10)
            self.daemon, self.daemon_due_s = None, now + self.chance.choice((0.0, 0.2, 1.0))
        else:
            self.replace(self.chance.randrange(len(self.workers)))
        for worker in self.workers:
            worker.check()
        self.note_spent()
        time.sleep(self.chance.uniform(0.02, 0.3))

    def replace(self, place: int) -> None:
        victim = self.workers[place]
        victim.process.kill()
        victim.process.wait(timeout=10)
        self.kills += 1
        self.workers[place] = self.start_worker(place)

    def note_spent(self) -> None:
        """GPU time in a tenant's books only grows, whoever dies."""
        for tenant in {worker.tenant for worker in self.workers}:
            with contextlib.suppress(OSError):
                spent = max((d.spent_ns for d in segment.read(tenant).devices), default=0)
                assert spent >= self.spent_ns.get(tenant, 0)
                self.spent_ns[tenant] = spent

    def settle(self) -> Daemon:
        """Let everybody hold what it should; return the daemon, which then runs."""
        if self.daemon is None:
            self.daemon = self.start_daemon()
        for worker in self.workers:
            eventually(lambda worker=worker: worker.progress()[0] > 0)
            worker.process.send_signal(signal.SIGUSR1)
        for worker in self.workers:
            eventually(worker.is_holding)
        return self.daemon


@pytest.fixture
def scene(
    daemon: Callable[..., Daemon], built: Built, compile_c: Any, daemon_env: dict[str, str], run_dir: Path,
    tmp_path: Path, start_process: StartProcess, tenant: str,
) -> Any:  # fmt: skip
    libraries = ("-Wl,--no-as-needed", "-L", str(built.sim), "-lcuda", "-lnvidia-ml", "-pthread")
    flags = ("-D_GNU_SOURCE", f"-I{C}", "-Wno-unused-function", *libraries)
    binary = compile_c(C / "kills" / "worker.c", *flags, name="kills-worker")
    card = {"GPULIMIT_SIM_PROFILE": "small"}
    seed = int(os.environ.get("GPULIMIT_TEST_SEED") or time.time_ns() % 1_000_000)
    print(f"GPULIMIT_TEST_SEED={seed}")
    numbers = iter(range(1 << 30))

    def start_worker(place: int) -> Worker:
        number, which = next(numbers), place % len(QUOTAS)
        file = tmp_path / f"worker-{number}"
        file.write_bytes(bytes(PROGRESS.size))
        env = daemon_env | card | {
            "LD_LIBRARY_PATH": str(built.sim),
            "LD_PRELOAD": str(built.library),
            "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
            "GPULIMIT_TENANT": f"{tenant}-{which}",
            "GPULIMIT_WAIT": "60",
            **{f"GPULIMIT_{k.upper()}": str(v) for k, v in QUOTAS[which].items()},
        }  # fmt: skip
        held = 100_003 + place * 1009
        process = start_process([binary, str(file), str(seed + number), str(held)], env=env)
        return Worker(env["GPULIMIT_TENANT"], process, file, held)

    yield Scene(
        lambda: daemon(env=card, nvml_interval="100ms", log_level="info", linger="60s"),
        start_worker,
        random.Random(seed),  # noqa: S311
    )
    for which in range(len(QUOTAS)):
        remove_segments(f"{tenant}-{which}")


def books(tenant: str) -> tuple[int, int]:
    """Return what a tenant's books say in sum, and what those of its living processes say."""
    usage = segment.read(tenant)
    living = [p for p in usage.processes if p.is_alive]
    return usage.devices[0].used_bytes, sum(a.used_bytes for p in living for a in p.accounts)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_after_kills_at_random_the_books_are_true_and_nobody_is_stuck(scene) -> None:
    scene.daemon, scene.daemons = scene.start_daemon(), 1
    scene.workers = [scene.start_worker(place) for place in range(len(QUOTAS) * WORKERS)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        scene.step()
    node = scene.settle()

    held: dict[str, int] = {}
    for worker in scene.workers:
        held[worker.tenant] = held.get(worker.tenant, 0) + worker.held_bytes
    known = lambda t: node.tenant(t) or {"workers": ()}  # noqa: E731
    eventually(lambda: all(len(known(t)["workers"]) == WORKERS for t in held))
    for tenant, size in held.items():
        eventually(lambda tenant=tenant, size=size: books(tenant) == (size, size))
        gpu = known(tenant)["gpus"][0]
        assert (gpu["memory_used_bytes"], gpu["memory_waiting"], gpu["waiting"]) == (size, 0, 0)
        assert gpu["spent_ns"] >= scene.spent_ns[tenant] > 0
    eventually(lambda: node.state()["gpus"][0]["memory_used_bytes"] == sum(held.values()))

    for worker in scene.workers:
        worker.process.kill()
        worker.process.wait(timeout=10)
    for tenant in held:
        eventually(lambda tenant=tenant: books(tenant) == (0, 0))
        assert known(tenant)["workers"] == []
    eventually(lambda: node.state()["gpus"][0]["memory_used_bytes"] == 0)
    print(f"{scene.kills} workers and {scene.daemons - 1} daemons killed")
    assert scene.kills + scene.daemons > 2
