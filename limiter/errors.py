# SPDX-License-Identifier: Apache-2.0
"""The errors of this package.

    GpulimitError            one clear line for the user; exit status 1
    ├── UsageError           the command line contradicts itself; exit status 2
    ├── QuotaError           a quota cannot be read or cannot hold; exit status 2
    ├── LayoutMismatch       a segment is not what this version can read
    ├── NotInstalled         a file of the package is missing
    └── DriverError          a call of the GPU driver failed
        └── OutOfMemory      the driver has no memory (left)

Any other exception that leaves a command is a bug and shows its traceback.
"""

from __future__ import annotations


class GpulimitError(Exception):
    """An error that the user can act on; `str()` is the line to show."""

    exit_status = 1


class UsageError(GpulimitError):
    """The command line is invalid or contradicts itself."""

    exit_status = 2


class QuotaError(GpulimitError):
    """A quota that cannot be read or cannot hold; the message names flag or variable, value and position."""

    exit_status = 2

    def __init__(
        self, message: str, *, variable: str = "", value: str = "", position: int = 0, reason: str = ""
    ) -> None:
        super().__init__(message)
        self.variable = variable
        self.value = value
        self.position = position
        """Position of the character in the value, from 1; 0 for the whole value."""
        self.reason = reason


class LayoutMismatch(GpulimitError):
    """A shared-memory segment has another magic, version or size than this version reads."""

    def __init__(self, path: object, *, found: str, expected: str) -> None:
        super().__init__(f"{path}: found {found}, expected {expected}")
        self.found = found
        self.expected = expected


class NotInstalled(GpulimitError):
    """A file that belongs to this package is not there."""


class DriverError(GpulimitError):
    """A driver call returned an error."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call = call
        self.code = code
        self.name = name


class OutOfMemory(DriverError):
    """The driver, or the quota, had no memory for a call."""
