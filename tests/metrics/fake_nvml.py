# SPDX-License-Identifier: Apache-2.0
"""A made-up NVML library in Python, for what no real one and no simulated one would do on demand.

Functions get ctypes arguments as the readers pass them; `byref(x)` arrives with x in `_obj`.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from hypervisor.nvml.raw import INSUFFICIENT_SIZE, NOT_SUPPORTED, SUCCESS


class Library:
    """Functions by name; what is not here is a symbol that the library lacks."""

    def __init__(self, **functions: Any) -> None:
        self.calls: Counter[str] = Counter()
        for name, answer in functions.items():
            self.set(name, answer)

    def set(self, name: str, answer: Any) -> None:
        """Answer with a function, or always with the same code."""

        def function(*arguments: Any) -> int:
            self.calls[name] += 1
            return int(answer(*arguments)) if callable(answer) else int(answer)

        setattr(self, name, function)


def out(value: Any) -> Callable[..., int]:
    """Return a call that gives a number as its last argument."""

    def call(*arguments: Any) -> int:
        arguments[-1]._obj.value = value
        return SUCCESS

    return call


def text(value: bytes) -> Callable[..., int]:
    """Return a call that fills a buffer, whose size is its last argument."""

    def call(*arguments: Any) -> int:
        *_, room, size = arguments
        assert len(value) < size.value <= len(room)
        room.value = value
        return SUCCESS

    return call


def listing(items: Iterable[Any]) -> Callable[..., int]:
    """Return a list call, (…, count, items), by NVML's protocol."""
    rows = list(items)

    def call(*arguments: Any) -> int:
        *_, count, room = arguments
        fits = room is not None and count._obj.value >= len(rows)
        count._obj.value = len(rows)
        if not rows:
            return SUCCESS
        if not fits:
            return INSUFFICIENT_SIZE
        for place, row in enumerate(rows):
            room[place] = row
        return SUCCESS

    return call


def structure(**fields: Any) -> Callable[..., int]:
    """Return a call that fills the structure that is its last argument."""

    def call(*arguments: Any) -> int:
        for name, value in fields.items():
            setattr(arguments[-1]._obj, name, value)
        return SUCCESS

    return call


def nothing(*_: Any) -> int:
    return NOT_SUPPORTED


HANDLE = ctypes.c_void_p(1)
