# SPDX-License-Identifier: Apache-2.0
"""Parses and formats numbers with units, for the workload's options and for tables.

csrc/quota/quota.c parses quotas instead, so that the command line and the library never differ.
"""

from __future__ import annotations

import re
from fractions import Fraction

PERCENT = 100
"""The whole in percent."""
BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse(text: str, units: dict[str, int], what: str) -> int:
    """Return `text` in the smallest unit. Raises ValueError, which names the expected form."""
    match = NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        known = ", ".join(u for u in units if u)
        raise ValueError(f"{text!r} is not {what} (a number and one of {known})")
    return int(Fraction(match[1]) * units[match[2]])


def parse_bytes(text: str) -> int:
    """Return the bytes of "1GiB", "1.5 MiB" or "4096"."""
    return parse(text, BYTES, "a size")


def parse_ns(text: str) -> int:
    """Return the nanoseconds of "500us" or "1.5s"."""
    return parse(text, NANOSECONDS, "a duration")


def show_bytes(count: int) -> str:
    """Return bytes with a unit: "1.5 GiB", "512 MiB", "17 B"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count >= BYTES[unit]:
            return f"{count / BYTES[unit]:.4g} {unit}"
    return f"{count} B"


def show_ns(count: int) -> str:
    """Return nanoseconds with a unit: "1.25 s", "3.2 ms", "40 us"."""
    for unit in ("s", "ms", "us"):
        if count >= NANOSECONDS[unit]:
            return f"{count / NANOSECONDS[unit]:.3g} {unit}"
    return f"{count} ns"
