# SPDX-License-Identifier: Apache-2.0
"""The three tenants of the demo, each a `gpulimit load` under its own quota."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from limiter import environment
from limiter.errors import GpulimitError

STOP_TIMEOUT_S = 20.0
PR_SET_PDEATHSIG = 1
LARGE_CARD_BYTES = 15 << 30
GIB, HALF_GIB = 1 << 30, 1 << 29


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant's quota and workload."""

    name: str
    memory_bytes: int
    weight: int
    load: tuple[str, ...]

    @property
    def memory(self) -> str:
        return show_mib(self.memory_bytes)


def show_mib(count: int) -> str:
    """Return bytes in the form of an option."""
    return f"{count >> 30}GiB" if count % GIB == 0 else f"{count >> 20}MiB"


def roles(card_bytes: int) -> tuple[TenantSpec, ...]:
    """Return the demo's tenants; on a small card they have half as much memory."""
    unit = GIB if card_bytes >= LARGE_CARD_BYTES else HALF_GIB
    quarter, some, most = show_mib(unit // 4), show_mib(5 * unit // 2), show_mib(5 * unit)
    grow = ("--kernel", "500us", "--memory", quarter, "--grow", quarter)
    return (
        TenantSpec("small", 2 * unit, 1, grow),
        TenantSpec("medium", 4 * unit, 2, ("--kernel", "200us", "--graph", "5", "--memory", some)),
        TenantSpec("large", 8 * unit, 3, ("--kernel", "1ms", "--memory", most, "--alloc", "vmm")),
    )


def entitled(present: Iterable[TenantSpec]) -> dict[str, float]:
    """Return each tenant's share of the GPU, 0 to 1, if all these want it."""
    weights = {role.name: role.weight for role in present}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def die_with_parent() -> None:
    """Make the kernel kill this process when the demo ends, for whatever reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(slots=True)
class DemoTenant:
    """One tenant of the demo: the program that runs now, and what earlier ones printed."""

    role: TenantSpec
    variables: Mapping[str, str]
    process: subprocess.Popen[str] | None = None
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tenant(self) -> str:
        return self.variables["GPULIMIT_TENANT"]

    @property
    def command(self) -> str:
        """Return the command as a user would type it."""
        role = self.role
        quota = f"--memory {role.memory} --weight {role.weight}"
        return f"gpulimit run {quota} -- gpulimit load {' '.join(role.load)}"

    def start(self) -> None:
        """Start the tenant's program as `gpulimit run` does, but keep its pid."""
        load = ("load", *self.role.load, "--json", "--seconds", "600")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "limiter", *load],
            env=dict(self.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def check(self) -> None:
        """Raise GpulimitError, with the program's stderr, if it has ended by itself."""
        process = self.process
        if process is not None and process.poll() is not None:
            said = read(process.stderr).strip() or f"status {process.returncode}"
            raise GpulimitError(f"tenant {self.role.name} ended early: {said}")

    def kill(self) -> None:
        """Kill the program without a chance to clean up."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask the program to end, and keep its output."""
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
        """End the program if it still runs."""
        with contextlib.suppress(OSError):
            self._end(signal.SIGKILL)


def read(stream: IO[str] | None) -> str:
    return stream.read() if stream else ""


def company(variables: Mapping[str, str], card_bytes: int, socket: str) -> list[DemoTenant]:
    """Return the tenants of one demo, not started; `variables` is the environment without quota, `socket` the
    daemon's.
    """
    actors = []
    for role in roles(card_bytes):
        own = dict(variables) | {
            "GPULIMIT_SOCKET": socket,
            "GPULIMIT_TENANT": f"demo-{os.getpid()}-{role.name}",
            "GPULIMIT_MEMORY": role.memory,
            "GPULIMIT_WEIGHT": str(role.weight),
        }
        environment.preload(own)
        actors.append(DemoTenant(role, own))
    return actors
