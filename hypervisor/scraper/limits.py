# SPDX-License-Identifier: Apache-2.0
"""Bounds of one page. Pure."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one page. Those on numbers refuse what is new; what was there before goes on.

    The defaults hold a node with about a thousand clients; a page made to fill them costs about a second of
    CPU (`python -m tests.remote.measure`).
    """

    page_bytes: int = 10 * MIB
    lines: int = 100_000
    line_bytes: int = 64 * KIB
    names: int = 2_000
    """Different names of samples; of families, as many."""
    series: int = 50_000
    labels: int = 64
    """In one series."""
    name_bytes: int = 256
    """Bytes of a metric's or a label's name."""
    value_bytes: int = 1024
    """Bytes of a label's value, as UTF-8; longer ones are cut."""
    help_bytes: int = 1024


LIMITS = Limits()
