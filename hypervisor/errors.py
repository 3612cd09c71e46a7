# SPDX-License-Identifier: Apache-2.0
"""The daemon's errors.

GpulimitError
├── ConfigError     an option cannot be used; names key, value and where it came from; exit status 2
├── KubeError       the API server or the kubelet does not do what it was asked; with its HTTP status
├── Refused         a process, a quota or a request is turned away, with an HTTP status
├── SegmentError    shared memory cannot be made or used
│   ├── SegmentFull for want of memory or descriptors: nothing is wrong with what is there
│   └── SegmentHeld since another process uses it
└── StateError      a file of the daemon's state cannot be read or written
"""

from __future__ import annotations

from limiter._native import lib

from limiter.errors import GpulimitError

MAX_REASON_BYTES = int(lib.GL_MAX_REASON_BYTES)
"""Longest line in a header; the library takes no longer one."""
MAX_TEXT_CHARS = 1000


class ConfigError(GpulimitError):
    """An option, or a key in the configuration file, that cannot be used."""

    exit_status = 2

    def __init__(self, key: str, origin: str, reason: str) -> None:
        super().__init__(f"{origin}: {key}: {reason}" if origin else f"{key}: {reason}")
        self.key = key
        self.origin = origin
        self.reason = reason


class Refused(GpulimitError):
    """Turned away; `str()` is one line of printable ASCII, `header` what of it a header carries."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(shortened("".join(c if " " <= c <= "~" else "?" for c in reason), MAX_TEXT_CHARS))
        self.status = status

    @property
    def header(self) -> str:
        return shortened(str(self), MAX_REASON_BYTES)


class SegmentError(GpulimitError):
    """A segment cannot be made, opened or written."""


class StateError(GpulimitError):
    """A file in the state folder cannot be read, written or kept aside."""


class SegmentFull(SegmentError):
    """There is no memory, or no descriptor, for it now; what is there is as good as before."""


class SegmentHeld(SegmentError):
    """Another process uses it in a way that leaves no room for this one."""


class KubeError(GpulimitError):
    """The API server or the kubelet refuses, cannot be reached, or answers nonsense; then `status` is 0."""

    def __init__(self, status: int, reason: str) -> None:
        plain = "".join(c if " " <= c <= "~" else "?" for c in reason)[:MAX_REASON_BYTES]
        super().__init__(f"status {status}: {plain}" if status else plain)
        self.status = status


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
