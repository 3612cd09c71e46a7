# SPDX-License-Identifier: Apache-2.0
"""Converts Kubernetes quantities to the syntax of quotas. Pure.

In Kubernetes, "4G" is 4 x 10^9 and "500m" is half a byte. In a quota, both are powers of 1024. So amounts of
the cluster are parsed here first, and keep their Kubernetes meaning.
"""

from __future__ import annotations

import re
from fractions import Fraction

BINARY = {unit: 1 << 10 * power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
DECIMAL = {unit: 10 ** (3 * power) for power, unit in enumerate(("", "k", "M", "G", "T", "P", "E"))}
QUANTITY = re.compile(r"(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:([eE][+-]?\d{1,2})|([A-Za-z]*))", re.ASCII)
MIN_BYTES = 1 << 20
"""A smaller amount is taken for a forgotten or wrong unit."""
WRITE = "write 4Gi, 512Mi, 50% or a number of bytes"


def quantity(text: str) -> Fraction:
    """Return the exact value of a quantity. Raises ValueError."""
    match = QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:60]!a} is not an amount; {WRITE}")
    number = Fraction(match[1])
    if match[2]:
        return number * Fraction(10) ** int(match[2][1:])
    unit = match[3]
    if unit in ("m", "u", "n"):
        raise ValueError(f"{text[:60]!a} is less than a byte in Kubernetes' units; {WRITE}")
    if unit not in BINARY and unit not in DECIMAL:
        raise ValueError(f"{text[:60]!a} has no unit that Kubernetes knows; {WRITE}")
    return number * (BINARY.get(unit) or DECIMAL[unit])


def size_bytes(text: str) -> int:
    """Return a quantity in bytes, rounded up. Raises ValueError, also for a size that must be a mistake."""
    exact = quantity(text)
    size = -(-exact.numerator // exact.denominator)
    if size < MIN_BYTES:
        raise ValueError(f"{text[:60]!a} is less than 1 MiB; {WRITE}")
    if size >= 1 << 63:
        raise ValueError(f"{text[:60]!a} is too large")
    return size


def memory_text(text: str) -> str:
    """Return a memory quota in quota syntax, from one amount or a list "GPU-3430f778=4Gi,*=50%".

    Raises ValueError.
    """
    return ",".join(entry_text(entry) for entry in text.split(","))


def entry_text(entry: str) -> str:
    device, equals, amount = entry.rpartition("=")
    amount = amount.strip()
    if not amount.endswith("%"):
        # KiB, MiB and so on mean the same everywhere.
        plain = amount.removesuffix("B") if amount.endswith("iB") else amount
        amount = f"{size_bytes(plain)}B"
    return f"{device.strip()}{equals}{amount}"


def compute_text(text: str) -> str:
    """Return a limit on GPU time in quota syntax: "30", "30%", or a list of these by GPU."""
    return ",".join(part.strip().removesuffix("%").rstrip() for part in text.split(","))
