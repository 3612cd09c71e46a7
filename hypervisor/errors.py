# SPDX-License-Identifier: Apache-2.0
"""The daemon's errors.

GpulimitError
├── ConfigError     an option is invalid; names key, value and origin; exit status 2
├── KubeError       a request to the API server or the kubelet failed; has its HTTP status
├── Refused         a process, a quota or a request is refused, with an HTTP status
├── SegmentError    shared memory cannot be created or used
│   ├── SegmentFull for lack of memory or descriptors: the existing content is valid
│   └── SegmentHeld because another process uses it
└── StateError      a file of the daemon's state cannot be read or written
"""

from __future__ import annotations

from limiter._native import lib

from limiter.errors import GpulimitError

MAX_REASON_BYTES = int(lib.GL_MAX_REASON_BYTES)
"""Longest line in a header: the library does not accept a longer one."""
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
    """A refusal; `str()` is one line of printable ASCII, `header` the part of it for a header."""

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
    """There is no memory, or no descriptor, for a segment now; its content stays valid."""


class SegmentHeld(SegmentError):
    """Another process uses the segment exclusively."""


class KubeError(GpulimitError):
    """The API server or the kubelet failed. `status` is 0 without a valid answer."""

    def __init__(self, status: int, reason: str) -> None:
        plain = "".join(c if " " <= c <= "~" else "?" for c in reason)[:MAX_REASON_BYTES]
        super().__init__(f"status {status}: {plain}" if status else plain)
        self.status = status


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
