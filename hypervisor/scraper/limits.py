# SPDX-License-Identifier: Apache-2.0
"""Bounds of one page. Pure."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one page. Bounds on numbers refuse new objects; known objects go on.

    The defaults suffice for a node with about a thousand clients. A hostile page that fills them costs about
    a second of CPU time (`python -m tests.remote.measure`).
    """

    page_bytes: int = 10 * MIB
    lines: int = 100_000
    line_bytes: int = 64 * KIB
    names: int = 2_000
    """Number of different sample names, and of family names."""
    series: int = 50_000
    labels: int = 64
    """Number of labels of one series."""
    name_bytes: int = 256
    """Bytes of a metric's or a label's name."""
    value_bytes: int = 1024
    """Bytes of a label's value, as UTF-8; longer values are cut."""
    help_bytes: int = 1024


LIMITS = Limits()
