# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of asking NVML: children that end, hang and cannot be killed, a loop that is held up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hypervisor.nvml import client
from hypervisor.nvml.client import Nvml
from hypervisor.nvml.loop_clock import LoopClock

LINE = json.dumps({"gpus": [], "failed": [{"index": 3, "uuid": "", "error": "is bad", "lost": True}]})
BEGIN = f"import os, time; open(f'{{os.environ[\"PIDS\"]}}/{{os.getpid()}}', 'w'); line = {LINE!r}\n"


class Asked:
    """A client of a probe that a test has written."""

    def __init__(self, folder: Path, script: str, **options: float) -> None:
        package = folder / "hypervisor" / "nvml"
        package.mkdir(parents=True)
        for place in (package, package.parent):
            (place / "__init__.py").touch()
        (package / "probe.py").write_text(BEGIN + script)
        self.pids_folder = folder / "pids"
        self.pids_folder.mkdir()
        self.reasons: list[str] = []
        environment = dict(os.environ) | {"PYTHONPATH": str(folder), "PIDS": str(self.pids_folder)}
        self.nvml = Nvml(environment, sampled=lambda _: None, failed=self.reasons.append, **options)

    @property
    def pids(self) -> list[int]:
        return [int(path.name) for path in self.pids_folder.iterdir()]

    async def until(self, check: Callable[[], object], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not check():
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def asking(asked: Asked) -> AsyncIterator[Asked]:
    task = asyncio.create_task(asked.nvml.run())
    try:
        yield asked
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for child in asked.nvml._stuck:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            await child.wait()


def test_children_that_cannot_be_killed_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process in the driver's uninterruptible sleep: the signal is sent and nothing happens."""
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda _: None)
    asked = Asked(tmp_path, "print(line, flush=True)\ntime.sleep(1000)\n", period_s=0.05, timeout_s=0.1)

    async def script() -> None:
        async with asking(asked):
            await asked.until(lambda: any("cannot be killed" in reason for reason in asked.reasons))
            assert len(asked.pids) == client.MAX_STUCK
            tries = asked.nvml.health.errors["stuck"]
            await asked.until(lambda: asked.nvml.health.errors["stuck"] > tries)
            assert len(asked.pids) == client.MAX_STUCK and asked.nvml.health.failure[0] == "stuck"
            for pid in asked.pids:
                os.kill(pid, signal.SIGKILL)
            await asked.until(lambda: len(asked.pids) > client.MAX_STUCK)
            await asked.until(lambda: asked.nvml.health.is_up or asked.nvml.health.failure[0] != "stuck")

    try:
        asyncio.run(script())
    finally:
        for pid in asked.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_child_that_answers_and_then_hangs_is_started_again_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    asked = Asked(tmp_path, "for _ in range(3): print(line, flush=True)\n", period_s=0.1, timeout_s=5.0)
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def script() -> None:
        async with asking(asked):
            async with asyncio.timeout(60):
                while asked.nvml.restarts < 12:
                    await sleep(0.02)

    monkeypatch.setattr(client.asyncio, "sleep", noted)
    monkeypatch.setattr("hypervisor.nvml.loop_clock.TICK_S", 0.26)
    asyncio.run(script())
    between = [one for one in pauses if one not in (0.26, 0.02)]
    assert between[:4] == [0.2, 0.4, 0.8, 1.6] and max(between) == client.MAX_PAUSE_S


def test_a_loop_that_is_held_up_is_not_nvmls_silence(tmp_path: Path) -> None:
    every = "while True: print(line, flush=True); time.sleep(0.05)\n"
    asked = Asked(tmp_path, every, period_s=0.05, timeout_s=1.5)

    async def script() -> None:
        async with asking(asked):
            await asked.until(lambda: asked.nvml.silence_s() is not None)
            for _ in range(2):
                time.sleep(3.0)  # far longer than NVML may be silent
                await asyncio.sleep(0)
                silence_s = asked.nvml.silence_s()
                assert silence_s is not None and silence_s < 1.0
                await asyncio.sleep(0.5)
            assert not asked.reasons and asked.nvml.restarts == 0 and len(asked.pids) == 1
            [failed] = asked.nvml.health.failed
            assert (failed.index, failed.error, failed.is_lost) == (3, "is bad", True)

    asyncio.run(script())


def test_silence_is_noticed_while_the_loop_runs(tmp_path: Path) -> None:
    asked = Asked(tmp_path, "print(line, flush=True)\ntime.sleep(1000)\n", period_s=0.1, timeout_s=0.5)

    async def script() -> None:
        async with asking(asked):
            await asked.until(lambda: asked.reasons)
            assert asked.reasons == ["NVML did not answer for 0.5 s"] and not asked.nvml.health.is_up
            silence_s = asked.nvml.silence_s()
            assert silence_s is not None and silence_s >= 0.5

    asyncio.run(script())


def test_the_loops_clock_goes_about_as_time_does() -> None:
    async def script() -> None:
        clock = LoopClock()
        task = asyncio.create_task(clock.run())
        begin_s, began_s = clock.now_s(), time.monotonic()
        await asyncio.sleep(1.0)
        passed_s = time.monotonic() - began_s
        assert 0.5 <= clock.now_s() - begin_s <= passed_s + 0.1
        task.cancel()

    asyncio.run(script())
