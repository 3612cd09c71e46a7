# SPDX-License-Identifier: Apache-2.0
"""Which processes a card or a MIG device has, with a bound on how many the driver can claim."""

from __future__ import annotations

import ctypes
from ctypes import c_uint, c_ulonglong
from typing import Any

from hypervisor.nvml.raw import Failed, Raw

MAX_PROCESSES = 4096
NOT_AVAILABLE = (1 << 64) - 1
CALLS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
"""Newest first; both have the same rows."""


class NvmlProcess(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint),
        ("bytes", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


def processes_on(raw: Raw, device: Any) -> list[list[int | None]] | None:
    """Return [pid, bytes] of the compute processes; None: not known. Bytes are None where not known."""
    for call in CALLS:
        try:
            rows = raw.list(call, NvmlProcess, MAX_PROCESSES, (device,))
        except Failed:
            return None
        if rows is not None:
            return [[int(p.pid), None if p.bytes == NOT_AVAILABLE else int(p.bytes)] for p in rows]
    return None
