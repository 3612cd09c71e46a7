# SPDX-License-Identifier: Apache-2.0
"""Errors of fetching and parsing another machine's page."""

from __future__ import annotations

from typing import Literal

from limiter.errors import GpulimitError

Reason = Literal[
    "refused",  # no listener there, or the way is barred
    "timeout",
    "broken",  # the connection ended, or what came was no HTTP
    "redirect",
    "status",
    "too_large",
    "encoding",
    "tls",
    "empty",  # a page without a single sample
]


class FetchError(GpulimitError):
    """A page that could not be had; `reason` is one word, for metrics."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Reason = reason


class AddressError(GpulimitError):
    """An address that cannot be used; says which, and why."""

    exit_status = 2

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"{address!r}: {why}")
        self.why = why
