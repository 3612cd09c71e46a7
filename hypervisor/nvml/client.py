# SPDX-License-Identifier: Apache-2.0
"""NVML, in a child process: a driver call that hangs cannot be interrupted, but a process can be killed.

The child prints one JSON line a period. When a line is late the child is killed and started again, after a
pause that grows; the daemon goes on with what it knew. A child that cannot be killed stays, and there are few
of them at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypervisor.model import FailedCard, Gpu, GpuSample, GpuUuid, MigLocation
from hypervisor.nvml.loop_clock import LoopClock
from hypervisor.nvml.partitions import mig_gpu_of, vgpu_host_of
from hypervisor.nvml.readings import readings_of
from limiter import environment

logger = logging.getLogger(__name__)
PERIOD_S = 1.0
TIMEOUT_S = 5.0
FIRST_TIMEOUT_S = 30.0
"""For the first answer: where nothing keeps the driver loaded, it takes seconds for each card."""
MAX_PAUSE_S = 30.0
STEADY_S = 60.0
"""A child that answered for so long is followed by the next after the shortest pause."""
MAX_STUCK = 2
"""Children that were killed and are still there: stuck in the driver. With so many no other is started."""
MAX_LINE = 16 << 20
"""Of the largest host with every list at its bound; anything longer is nonsense."""
MAX_CARDS = 64
MAX_XIDS = 1024


@dataclass(slots=True)
class Health:
    """How asking NVML goes; changed on the loop alone."""

    is_up: bool = False
    last_success_at_ns: int | None = None
    """CLOCK_REALTIME."""
    duration_s: float | None = None
    errors: Counter[str] = field(default_factory=Counter)
    """By NVML's number of the error, or timeout, ended, nonsense."""
    failure: tuple[str, str] = ("", "")
    """Of the last try: a key of `errors`, and why; empty if it went well."""
    xids: Counter[tuple[GpuUuid, int]] = field(default_factory=Counter)
    last_xid_at_ns: dict[GpuUuid, int] = field(default_factory=dict)
    listed: frozenset[GpuUuid] = frozenset()
    """Cards and MIG devices in the last answer."""
    failed: tuple[FailedCard, ...] = ()
    """Cards in the last answer of which nothing is known but that they fail."""


class Nvml:
    """Keeps a child going and hands its samples on."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        sampled: Callable[[tuple[GpuSample, ...]], None],
        failed: Callable[[str], None],
        cards_failed: Callable[[tuple[FailedCard, ...]], None] = lambda _: None,
        totals: Mapping[str, int] | None = None,
        period_s: float = PERIOD_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`cards_failed` is told, before `sampled`, of cards that have no sample. `totals`: memory of cards,
        by UUID, index or "*", for where NVML has none.
        """
        self._environment = dict(environment)
        self._sampled = sampled
        self._failed = failed
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._cards_failed = cards_failed
        self._totals = dict(totals or {})
        self._clock = LoopClock()
        self._answered_at_s: float | None = None
        """By the loop's clock."""
        self._stuck: list[asyncio.subprocess.Process] = []
        """Children that were killed."""
        self.restarts = 0
        self.health = Health()

    def silence_s(self) -> float | None:
        """Return for how long NVML has not answered, while this process ran; None: it never has."""
        return None if self._answered_at_s is None else self._clock.now_s() - self._answered_at_s

    async def run(self) -> None:
        """Sample for ever."""
        ticking = asyncio.create_task(self._clock.run(), name="nvml: clock")
        try:
            await self._run_children()
        finally:
            ticking.cancel()

    async def _run_children(self) -> None:
        pause_s = self._period_s
        while True:
            self._stuck = [child for child in self._stuck if child.returncode is None]
            if len(self._stuck) >= MAX_STUCK:
                self._fail("stuck", f"{len(self._stuck)} processes that ask NVML cannot be killed")
                is_steady = False
            else:
                begin_s = time.monotonic()
                lines = await self._run_child()
                is_steady = lines > 1 and time.monotonic() - begin_s >= STEADY_S
                self.restarts += 1
            pause_s = self._period_s if is_steady else min(MAX_PAUSE_S, pause_s * 2)
            await asyncio.sleep(pause_s)

    async def _run_child(self) -> int:
        """Run one child to its end; return how many good lines it gave."""
        numbers = (str(self._period_s), str(self._timeout_s), json.dumps(self._totals))
        argv = (sys.executable, "-P", "-m", "hypervisor.nvml.probe", *numbers)
        child = await asyncio.create_subprocess_exec(
            *argv, env=self._environment, stdout=asyncio.subprocess.PIPE, limit=MAX_LINE
        )
        assert child.stdout is not None
        lines, has_said_why = 0, False
        longest_s = max(self._timeout_s, FIRST_TIMEOUT_S)
        try:
            while True:
                line = await self._next_line(child.stdout, self._period_s + longest_s)
                longest_s = self._timeout_s
                if not line:
                    if not has_said_why:
                        self._fail("ended", "the process that asks NVML ended")
                    return lines
                has_said_why = not self._take(line)
                lines += not has_said_why
        except TimeoutError:
            self._fail("timeout", f"NVML did not answer for {longest_s:g} s")
            return lines
        except (ValueError, KeyError, TypeError) as error:
            self._fail("nonsense", f"the process that asks NVML talks nonsense: {error}")
            return lines
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            self._stuck.append(child)
            # A process stuck in the driver may take its time to die; do not wait for it for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await child.wait()

    async def _next_line(self, lines: asyncio.StreamReader, limit_s: float) -> bytes:
        """Return a line. Raises TimeoutError if none comes while this process runs for `limit_s`."""
        end_s = self._clock.now_s() + limit_s
        while True:
            try:
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with a line.
                async with asyncio.timeout(max(0.01, end_s - self._clock.now_s())):
                    return await lines.readline()
            except TimeoutError:
                if self._clock.now_s() >= end_s:
                    raise

    def _fail(self, code: str, reason: str) -> None:
        self.health.is_up = False
        self.health.errors[code] += 1
        self.health.failure = code, reason
        self._failed(reason)

    def _take(self, line: bytes) -> bool:
        """Take over what a line says; True if NVML has answered."""
        data = json.loads(line)
        if data.get("error"):
            self._fail(str(data.get("code") or "unknown"), str(data["error"]))
            return False
        now_ns = time.time_ns()
        health = self.health
        self._answered_at_s = self._clock.now_s()
        health.is_up, health.last_success_at_ns, health.failure = True, now_ns, ("", "")
        health.duration_s = float(data.get("duration_s", 0.0))
        health.errors.update(data.get("errors", {}))
        for uuid, xid in data.get("xids", ()):
            if (uuid, xid) in health.xids or len(health.xids) < MAX_XIDS:
                health.xids[GpuUuid(uuid), int(xid)] += 1
            health.last_xid_at_ns[GpuUuid(uuid)] = now_ns
        samples = tuple(s for row in data["gpus"][:MAX_CARDS] for s in samples_of(row))
        health.listed = frozenset(sample.gpu.uuid for sample in samples)
        health.failed = tuple(failed_card(row) for row in data.get("failed", ())[:MAX_CARDS])
        self._cards_failed(health.failed)
        self._sampled(samples)
        return True


def environment_of_child(*, is_simulated: bool) -> dict[str, str]:
    """Return the environment of the process that asks NVML: it is never limited itself."""
    variables = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    if is_simulated:
        environment.use_simulated_driver(variables)
    return variables


def samples_of(row: dict[str, Any]) -> Iterator[GpuSample]:
    """Yield a card by the probe's row of it, then its MIG devices."""
    gpu = Gpu(GpuUuid(row["uuid"]), row["index"], row["memory_bytes"], row["name"], row.get("minor"))
    card = sample_of(row, gpu)
    name: Any = {"uuid": card.gpu.uuid, "index": card.gpu.index, "name": card.gpu.name}
    mig = row.get("mig")
    yield replace(
        card,
        vgpu=vgpu_host_of(row.get("vgpu"), **name),
        mig=mig_gpu_of(mig, **name),
        mig_error=str((mig or {}).get("error", "")),
    )
    for part in (mig or {}).get("instances", ()):
        if not part["memory_bytes"]:
            continue  # nothing can be promised of it
        place = MigLocation(card.gpu.uuid, part["index"], part["profile"])
        gpu = Gpu(GpuUuid(part["uuid"]), card.gpu.index, part["memory_bytes"], part["name"], mig=place)
        error = card.error or part["error"]
        yield sample_of({**part, "error": error, "lost": row.get("lost")}, gpu)


def failed_card(row: dict[str, Any]) -> FailedCard:
    return FailedCard(int(row["index"]), GpuUuid(row["uuid"]), str(row["error"]), is_lost=bool(row["lost"]))


def sample_of(row: dict[str, Any], gpu: Gpu) -> GpuSample:
    readings = readings_of(row)
    return GpuSample(
        gpu=gpu,
        memory_used_bytes=int(readings.memory_used_bytes or 0),
        utilisation_percent=None
        if readings.utilization_ratio is None
        else round(readings.utilization_ratio * 100),
        pids=tuple((pid, used or 0) for pid, used in (readings.processes or {}).items()),
        error=row["error"],
        is_lost=bool(row.get("lost")),
        readings=readings,
        memory_source=str(row.get("memory_source") or "nvml"),
    )
