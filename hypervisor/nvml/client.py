# SPDX-License-Identifier: Apache-2.0
"""Runs NVML in a child process: a hanging driver call cannot be interrupted, but a process can be killed.

The child prints one JSON line per period. If a line is late, the child is killed and started again, after a
growing pause. The daemon continues with the last values. A child that cannot be killed stays behind; their
number is bounded.
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
"""Timeout of the first answer: without persistence mode, the driver takes seconds per card to initialise."""
MAX_PAUSE_S = 30.0
STEADY_S = 60.0
"""If a child answered for at least this time, the next one starts after the shortest pause."""
MAX_STUCK = 2
"""Largest number of killed children that are stuck in the driver. At this number no other child is
started."""
MAX_LINE_BYTES = 16 << 20
"""Line of the largest host with every list at its bound. A longer line is invalid."""
MAX_CARDS = 64
MAX_XIDS = 1024
FRESH_PERIODS, MIN_FRESH_S = 3, 3.0
"""A sample is recent within so many periods, and so many seconds at least."""


def max_age_s(period_s: float) -> float:
    """Return how old the newest of samples that are taken once a period may be."""
    return max(MIN_FRESH_S, FRESH_PERIODS * period_s)


@dataclass(slots=True)
class Health:
    """Success and failures of NVML. Event loop only."""

    is_up: bool = False
    last_success_at_ns: int | None = None
    """CLOCK_REALTIME."""
    duration_s: float | None = None
    errors: Counter[str] = field(default_factory=Counter)
    """Counts by NVML's error number, or "timeout", "ended", "nonsense"."""
    failure: tuple[str, str] = ("", "")
    """Failure of the last try: a key of `errors`, and the reason; empty if it succeeded."""
    xids: Counter[tuple[GpuUuid, int]] = field(default_factory=Counter)
    last_xid_at_ns: dict[GpuUuid, int] = field(default_factory=dict)
    listed: frozenset[GpuUuid] = frozenset()
    """Cards and MIG devices in the last answer."""
    failed: tuple[FailedCard, ...] = ()
    """Cards in the last answer that fail and have no other data."""


class Nvml:
    """Keeps a child running and passes its samples on."""

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
        """Create the client. It calls `cards_failed` with the cards that have no sample, then `sampled`.

        `totals` is the memory of cards, by UUID, index or "*", for cards whose memory NVML does not report.
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
        """Time of the last answer, by the event loop's clock."""
        self._stuck: list[asyncio.subprocess.Process] = []
        """Killed children that have not ended."""
        self.restarts = 0
        self.health = Health()

    def silence_s(self) -> float | None:
        """Return the time since NVML's last answer while this process ran; None if it has never answered."""
        return None if self._answered_at_s is None else self._clock.now_s() - self._answered_at_s

    def is_fresh(self) -> bool:
        """Return True if NVML's last answer is a good one, and recent."""
        silence_s = self.silence_s()
        return self.health.is_up and silence_s is not None and silence_s <= max_age_s(self._period_s)

    async def run(self) -> None:
        """Sample until cancelled."""
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
        """Run one child to its end; return its number of valid lines."""
        numbers = (str(self._period_s), str(self._timeout_s), json.dumps(self._totals))
        argv = (sys.executable, "-P", "-m", "hypervisor.nvml.probe", *numbers)
        child = await asyncio.create_subprocess_exec(
            *argv, env=self._environment, stdout=asyncio.subprocess.PIPE, limit=MAX_LINE_BYTES
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
            # A process that is stuck in the driver may not die for a long time. Do not wait for it.
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
        """Handle a line; return True if NVML has answered."""
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
    """Return the environment of the process that calls NVML: gpulimit must not limit it."""
    variables = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    if is_simulated:
        environment.use_simulated_driver(variables)
    return variables


def samples_of(row: dict[str, Any]) -> Iterator[GpuSample]:
    """Yield the card of a probe's row, then its MIG devices."""
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
            continue  # no quota can be enforced without its memory size
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
