# SPDX-License-Identifier: Apache-2.0
"""The process that asks NVML, seen from the loop."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from hypervisor.nvml.client import Nvml


def test_a_cancellation_that_comes_with_a_line_is_not_lost(tmp_path: Path) -> None:
    """The daemon would not end: cancelled at the very moment when a line is there, the task must go."""
    package = tmp_path / "hypervisor"
    (package / "nvml").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "nvml" / "__init__.py").touch()
    line = json.dumps({"gpus": []})
    (package / "nvml" / "probe.py").write_text(f"while True: print('{line}', flush=True)\n")

    async def cancel_among_lines() -> None:
        for number in range(20):
            enough = asyncio.Event()
            environment = dict(os.environ) | {"PYTHONPATH": str(tmp_path)}
            nvml = Nvml(environment, sampled=lambda _, e=enough: e.set(), failed=lambda _: None, period_s=0.1)
            task = asyncio.create_task(nvml.run())
            await asyncio.wait_for(enough.wait(), 10)
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=5)
            assert task in done
            assert task.cancelled()

    asyncio.run(cancel_among_lines())
