# SPDX-License-Identifier: Apache-2.0
"""Collects Xid errors for the probe: waits for NVML's events in the pauses between samples."""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import Any

import pynvml

MAX_EVENTS_AT_ONCE = 64


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def address_of(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class XidEvents:
    """An event set for all GPUs. If NVML has no events, `wait` only sleeps."""

    def __init__(self) -> None:
        self._uuids: dict[int, str] = {}
        try:
            self._set: Any = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            self._set = None

    def listen(self, handle: Any, uuid: str) -> None:
        """Add a GPU. Any thread: the call may hang for one GPU."""
        if self._set is None or address_of(handle) in self._uuids:
            return
        self._uuids[address_of(handle)] = uuid  # tried once: a GPU without events does not get them later
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)

    def wait(self, seconds: float) -> list[list[Any]]:
        """Pause; return [uuid, xid] of each error that arrived meanwhile."""
        end = time.monotonic() + seconds
        found: list[list[Any]] = []
        while (left := end - time.monotonic()) > 0:
            if self._set is None or len(found) >= MAX_EVENTS_AT_ONCE:
                time.sleep(left)
                break
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, max(1, int(left * 1000)))
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError:
                time.sleep(left)  # the event set is unusable now; samples go on
                break
            uuid = self._uuids.get(address_of(data.device), "")
            if data.eventType & pynvml.nvmlEventTypeXidCriticalError:
                found.append([uuid, int(data.eventData)])
        return found
