# SPDX-License-Identifier: Apache-2.0
"""One JSON file of the daemon's state folder: checked, replaced atomically, renamed if damaged."""

from __future__ import annotations

import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

from hypervisor.errors import StateError

MAX_FILE_BYTES = 64 << 20
"""Far above what a node's tenants need; a larger file was not written by a daemon."""


class StateFile:
    """A file at `path`, replaced as a whole. Event loop only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_in_the_way = False
        """True if the file cannot be used and could not be renamed: nothing is written over it."""

    def read(self) -> object:
        """Return the JSON value, None if there is no file. Raises StateError if it cannot be used."""
        try:
            # Not blocked by a FIFO that lies in its place.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(error.strerror or str(error)) from error
        try:
            return parsed(read_all(fd))
        finally:
            os.close(fd)

    def keep_aside(self, label: str) -> Path:
        """Rename the file, so that the next write does not replace it; return its new path.

        Raises StateError if that is impossible; then nothing is written until it is possible.
        """
        aside = self._free_name(label)
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return aside
        except OSError as error:
            self._is_in_the_way = True
            raise StateError(f"cannot rename it to {aside.name}: {error.strerror}") from error
        self._is_in_the_way = False
        return aside

    def copy_aside(self, label: str) -> Path:
        """Give the file's content a second name that writes leave alone. Raises StateError."""
        aside = self._free_name(label)
        try:
            os.link(self.path, aside)
        except OSError as error:
            self._is_in_the_way = True
            raise StateError(f"cannot keep it as {aside.name}: {error.strerror}") from error
        return aside

    def write(self, text: str, *, is_durable: bool) -> None:
        """Replace the file in one step. Raises StateError.

        `is_durable`: it is on the disk on return, also if the power fails.
        """
        if self._is_in_the_way:
            self.keep_aside("damaged")
        fresh = self.path.with_name(f".{self.path.name}.new")
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fresh.unlink(missing_ok=True)  # left by a killed daemon
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o644), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                if is_durable:
                    os.fsync(file.fileno())
            fresh.replace(self.path)
            if is_durable:
                sync_folder(self.path.parent)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise StateError(f"cannot write {self.path}: {reason}") from error

    def _free_name(self, label: str) -> Path:
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        name = f"{self.path.name}.{label}-{moment}"
        taken = 1
        while os.path.lexists(path := self.path.with_name(name if taken == 1 else f"{name}-{taken}")):
            taken += 1
        return path


def read_all(fd: int) -> bytes:
    """Return the bytes of an open file. Raises StateError if it is no plain file, or too large."""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise StateError("it is not a plain file")
        if status.st_size > MAX_FILE_BYTES:
            raise StateError(f"it has {status.st_size} bytes, more than {MAX_FILE_BYTES}")
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise StateError(error.strerror or str(error)) from error


def parsed(data: bytes) -> object:
    """Return the value of JSON text. Raises StateError, also for null, which stands for no file."""
    if not data.strip():
        raise StateError("it is empty")
    try:
        value: object = json.loads(data)
    except RecursionError as error:
        raise StateError("it is nested too deeply") from error
    except ValueError as error:
        raise StateError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StateError(f"it holds {json.dumps(value)[:20]} instead of an object")
    return value


def sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
