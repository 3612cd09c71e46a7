# SPDX-License-Identifier: Apache-2.0
"""Parsers of options' values; each raises ValueError with the reason for an invalid text. Pure."""

from __future__ import annotations

from collections.abc import Callable

from limiter import quota
from limiter.errors import QuotaError
from limiter.units import parse_bytes, parse_ns


def choice(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"{text!r} is none of {', '.join(values)}")
        return text

    return read


def duration(lowest: str, highest: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        ns = parse_ns(text)
        if not parse_ns(lowest) <= ns <= parse_ns(highest):
            raise ValueError(f"{text!r} is not between {lowest} and {highest}")
        return ns

    return read


def number(lowest: int, highest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise ValueError(f"{text!r} is not a number between {lowest} and {highest}")
        return int(text)

    return read


def size(lowest: str, highest: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        count = parse_bytes(text)
        if not parse_bytes(lowest) <= count <= parse_bytes(highest):
            raise ValueError(f"{text!r} is not between {lowest} and {highest}")
        return count

    return read


def choices(*values: str) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        return tuple(choice(*values)(part.strip()) for part in text.split(",") if part.strip())

    return read


def switch(text: str) -> bool:
    return choice("on", "off")(text) == "on"


def address(text: str) -> str:
    """Check HOST:PORT; "" means off."""
    host, colon, port = text.rpartition(":")
    if text and not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return text


def url(text: str) -> str:
    """Check http(s)://HOST[:PORT]; "" means off."""
    scheme, colon, rest = text.partition("://")
    if text and not (colon and scheme in ("http", "https") and rest.strip("/") and " " not in rest):
        raise ValueError(f"{text!r} is not https://HOST:PORT")
    return text


def amounts_by_card(text: str) -> tuple[tuple[str, int], ...]:
    """Parse "96GiB" or "0=96GiB,GPU-…=48GiB" to bytes by index, UUID or "*"; "" means none."""
    if not text:
        return ()
    try:
        rules = quota.parse_memory(text)
    except QuotaError as error:
        raise ValueError(str(error).partition(": ")[2]) from error
    if any(rule.is_share or not rule.amount for rule in rules):
        raise ValueError(f"{text!r} is not an amount of memory for each card")
    return tuple((rule.device, rule.amount) for rule in rules)
