# SPDX-License-Identifier: Apache-2.0
"""Lists the processes of a card or MIG device, with a bound on the number that the driver can claim."""

from __future__ import annotations

import ctypes
from ctypes import c_uint, c_ulonglong
from typing import Any

from hypervisor.nvml.raw import Failed, Raw

MAX_PROCESSES = 4096
NOT_AVAILABLE = (1 << 64) - 1
CALLS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
"""Newest first; both return the same rows."""


class NvmlProcess(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint),
        ("bytes", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


def processes_on(raw: Raw, device: Any) -> list[list[int | None]] | None:
    """Return [pid, bytes] of the compute processes; None if not known. Bytes are None if not known."""
    for call in CALLS:
        try:
            rows = raw.list(call, NvmlProcess, MAX_PROCESSES, (device,))
        except Failed:
            return None
        if rows is not None:
            return [[int(p.pid), None if p.bytes == NOT_AVAILABLE else int(p.bytes)] for p in rows]
    return None
