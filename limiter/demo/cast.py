# SPDX-License-Identifier: Apache-2.0
"""Who takes part in the demo: three tenants, each a `gpulimit load` under a quota of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from limiter import environment, tenants
from limiter.errors import GpulimitError

STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Role:
    """A tenant's quota and what it does with it."""

    name: str
    memory: str
    compute_percent: int
    load: tuple[str, ...]


ROLES = (
    Role("small", "2GiB", 20, ("--kernel", "500us", "--memory", "256MiB", "--grow", "256MiB")),
    Role("medium", "4GiB", 30, ("--kernel", "200us", "--graph", "5", "--memory", "3GiB")),
    Role("large", "8GiB", 40, ("--kernel", "1ms", "--memory", "5GiB", "--alloc", "vmm")),
)


@dataclass(slots=True)
class Actor:
    """One tenant of the demo: the program that runs now, and what earlier ones printed."""

    role: Role
    variables: Mapping[str, str]
    process: subprocess.Popen[str] | None = None
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tenant(self) -> str:
        return self.variables["GPULIMIT_TENANT"]

    @property
    def command(self) -> str:
        """Return the command as a person would type it."""
        quota = f"--memory {self.role.memory} --compute {self.role.compute_percent}"
        return f"gpulimit run {quota} -- gpulimit load {' '.join(self.role.load)}"

    def start(self) -> None:
        """Start the tenant's program, as `gpulimit run` does, but keep its pid at hand."""
        load = ("load", *self.role.load, "--json", "--seconds", "600")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "limiter", *load],
            env=dict(self.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def check(self) -> None:
        """Raise GpulimitError, with the program's own words, if it has ended by itself."""
        process = self.process
        if process is not None and process.poll() is not None:
            said = read(process.stderr).strip() or f"status {process.returncode}"
            raise GpulimitError(f"tenant {self.role.name} ended early: {said}")

    def kill(self) -> None:
        """Kill the program without a chance to clean up."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask the program to end, and keep what it prints."""
        out = self._end(signal.SIGTERM)
        if out.strip():
            self.results.append(json.loads(out))

    def _end(self, number: signal.Signals) -> str:
        process, self.process = self.process, None
        if process is None:
            return ""
        process.send_signal(number)
        try:
            out, _ = process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        return out

    def leave(self) -> None:
        """End whatever still runs and remove the tenant's books."""
        with contextlib.suppress(OSError):
            self._end(signal.SIGKILL)
            tenants.remove_if_unused(self.tenant)


def read(stream: IO[str] | None) -> str:
    return stream.read() if stream else ""


def company(variables: Mapping[str, str]) -> list[Actor]:
    """Return the tenants of one demo, not started; `variables` is the environment without quota."""
    actors = []
    for role in ROLES:
        own = {k: v for k, v in variables.items() if not k.startswith("CUDA_DEVICE_")}
        own |= {
            "GPULIMIT_TENANT": f"demo-{os.getpid()}-{role.name}",
            "GPULIMIT_MEMORY": role.memory,
            "GPULIMIT_COMPUTE": str(role.compute_percent),
        }
        environment.preload(own)
        actors.append(Actor(role, own))
    return actors
