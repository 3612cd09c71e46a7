# SPDX-License-Identifier: Apache-2.0
"""Reads the slices of each container from the kubelet's checkpoint file whenever it changes."""

from __future__ import annotations

import os
from pathlib import Path

from hypervisor.deviceplugin import checkpoint
from hypervisor.deviceplugin.checkpoint import Allocations

RECORD = "kubelet_internal_checkpoint"
MAX_FILE_BYTES = 64 << 20


class CheckpointFile:
    """The checkpoint, as last read."""

    def __init__(self, folder: Path, resource: str) -> None:
        self._path = folder / RECORD
        self._resource = resource
        self._seen: tuple[int, int, int] | None = None
        self.trouble = ""
        """Reason that the file cannot be read, or ""."""
        self.devices: Allocations = {}

    def refresh(self) -> None:
        """Read the file if it has changed. After a failure the last content stays, and `trouble` says why."""
        try:
            state = os.stat(self._path)  # noqa: PTH116
        except FileNotFoundError:
            self.trouble, self.devices, self._seen = "", {}, None  # no pod has had a device yet
            return
        except OSError as error:
            self.trouble = f"{self._path}: {error.strerror}"
            return
        seen = (state.st_ino, state.st_mtime_ns, state.st_size)
        if seen == self._seen and not self.trouble:
            return
        try:
            self.devices = checkpoint.allocations(self._text(), self._resource)
        except (OSError, ValueError) as error:
            self.trouble = f"{self._path}: {error}"
            return
        self.trouble, self._seen = "", seen

    def answers(self) -> list[bytes]:
        """Return Allocate's answers to containers. Raises OSError, ValueError."""
        return checkpoint.answers(self._text(), self._resource) if self._path.exists() else []

    def _text(self) -> str:
        with self._path.open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ValueError("is too large")
        return text
