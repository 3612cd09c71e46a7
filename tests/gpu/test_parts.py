# SPDX-License-Identifier: Apache-2.0
"""Reading vGPUs and MIG devices on a real driver: what is not there is no error, and structures fit."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.gpu.conftest import ROOT

pytest.importorskip("pynvml")
pytestmark = pytest.mark.gpu
PROGRAM = """
import ctypes, json, time
from collections import Counter
import pynvml
from hypervisor.nvml.mig import Gpm, MigReader
from hypervisor.nvml.processes import processes_on
from hypervisor.nvml.raw import Raw
from hypervisor.nvml.vgpu import VgpuReader

pynvml.nvmlInit()
errors = Counter()
raw = Raw(errors)
card = pynvml.nvmlDeviceGetHandleByIndex(0)
vgpu, mig = VgpuReader(raw), MigReader(raw)
told = [(vgpu.of(card, "GPU-1"), mig.of(card, "GPU-1")) for _ in range(2)]
gpm, busy, samples = Gpm(raw), None, []
if gpm.is_supported(card):
    for _ in range(2):
        sample = ctypes.c_void_p()
        assert raw.call("nvmlGpmSampleAlloc", ctypes.byref(sample)) == 0
        samples.append((raw.call("nvmlGpmSampleGet", card, sample), sample))
        time.sleep(0.3)
    if not any(code for code, _ in samples):
        busy = gpm._compare(samples[0][1], samples[1][1])
mode = pynvml.nvmlDeviceGetMigMode(card)[0] if told[0][1] is not None else None
print(json.dumps({"vgpu": told[1][0], "mig": told[1][1], "mode": mode, "busy": busy, "errors": errors,
    "processes": processes_on(raw, card)}))
mig.close()
"""


def test_a_real_driver_is_read_without_an_error(card_env: dict[str, str], run_process: Any) -> None:
    ended = run_process([sys.executable, "-c", PROGRAM], env=card_env | {"PYTHONPATH": str(ROOT)}, expect=0)
    told = json.loads(ended.stdout)
    assert told["errors"] == {}
    assert told["processes"] is not None
    if told["mig"] is not None:
        assert told["mig"]["enabled"] == (told["mode"] == 1) and told["mig"]["error"] == ""
    if told["busy"] is not None:  # GPM's structure is as this reader has it, or these would be anything
        assert set(told["busy"]) == {"busy", "memory_busy"}
        assert all(0 <= value <= 100 for value in told["busy"].values())
