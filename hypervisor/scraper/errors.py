# SPDX-License-Identifier: Apache-2.0
"""Errors of fetching and parsing another machine's page."""

from __future__ import annotations

from typing import Literal

from limiter.errors import GpulimitError

Reason = Literal[
    "refused",  # no listener, or no permission to connect
    "timeout",
    "broken",  # the connection ended, or the answer was no HTTP
    "redirect",
    "status",
    "too_large",
    "encoding",
    "tls",
    "empty",  # a page without a single sample
]


class FetchError(GpulimitError):
    """A page could not be fetched; `reason` is one word, for metrics."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Reason = reason


class AddressError(GpulimitError):
    """An unusable address; the text names it and the reason."""

    exit_status = 2

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"{address!r}: {why}")
        self.why = why
