# SPDX-License-Identifier: Apache-2.0
"""NVML called directly, for what pynvml gets wrong or does not have in every version: vGPU, MIG and GPM.

pynvml reads a vGPU's memory into 32 bits, announces more room for its VM's id than it has, and stumbles over
an empty list of processes (all versions from 12.535 to 13.615). The library is the same one that pynvml has
loaded. A symbol that it lacks answers like a call that is not supported.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from typing import Any

SUCCESS = 0
UNINITIALIZED, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 1, 3, 6, 7
FUNCTION_NOT_FOUND, DEPRECATED = 13, 26
ABSENT = frozenset({UNINITIALIZED, NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, DEPRECATED})
"""Answers that mean "there is no such thing here", and are no errors."""
LASTING = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED})
"""Those that stay until the driver, or the card's mode, is another."""
TEXT_BYTES = 256
MAX_UNSUPPORTED = 4096
TRIES = 3
"""Lists may grow between the call for their length and the call for what is in them."""


class Failed(Exception):
    """A call failed in a way that says nothing about what there is; counted already."""


class Raw:
    """The library, and a count of what went wrong by NVML's number of the error."""

    def __init__(self, errors: Counter[str], library: Any = None) -> None:
        self._library = library or ctypes.CDLL("libnvidia-ml.so.1")
        self.errors = errors
        self._unsupported: dict[tuple[str, int | None], int] = {}
        """Lasting answers, by call and its first argument: a card's say nothing of its MIG devices."""

    def forget(self) -> None:
        """Ask for all again: the driver or the card's mode has changed."""
        self._unsupported.clear()

    def call(self, name: str, *arguments: Any) -> int:
        """Return NVML's answer. Arguments are ctypes values: their width is what the header says.

        What a card does not support is asked for once. A vGPU's answers change with its machine's driver.
        """
        key = name, subject_of(arguments)
        known = self._unsupported.get(key)
        if known is not None:
            return known
        function = getattr(self._library, name, None)
        code = FUNCTION_NOT_FOUND if function is None else int(function(*arguments))
        if code in LASTING and name.startswith("nvmlDevice") and len(self._unsupported) < MAX_UNSUPPORTED:
            self._unsupported[key] = code
        return code

    def has(self, name: str, *arguments: Any) -> bool:
        """Call; False if there is no such thing here. Raises Failed."""
        code = self.call(name, *arguments)
        if code == SUCCESS:
            return True
        if code in ABSENT:
            return False
        self.errors[str(code)] += 1
        raise Failed(f"{name}: {self._meaning(code)}")

    def _meaning(self, code: int) -> str:
        """Return NVML's words for an error."""
        try:
            describe = self._library.nvmlErrorString
        except AttributeError:
            return f"error {code}"
        describe.restype = ctypes.c_char_p
        return (describe(code) or b"").decode("utf-8", "replace")[:TEXT_BYTES] or f"error {code}"

    def get(self, name: str, out: Any, *arguments: Any) -> Any:
        """Call with `out` as its last argument; return `out`, or None if it cannot be had."""
        try:
            return out if self.has(name, *arguments, ctypes.byref(out)) else None
        except Failed:
            return None

    def number(self, name: str, *arguments: Any) -> int | None:
        """Return the unsigned int that a call gives as its last argument."""
        out = self.get(name, ctypes.c_uint(), *arguments)
        return None if out is None else int(out.value)

    def long(self, name: str, *arguments: Any) -> int | None:
        """Return the unsigned long long that a call gives as its last argument."""
        out = self.get(name, ctypes.c_ulonglong(), *arguments)
        return None if out is None else int(out.value)

    def text(self, name: str, *arguments: Any) -> str:
        """Return the text that a call writes into a buffer, whose size is its last argument."""
        room = ctypes.create_string_buffer(TEXT_BYTES)
        try:
            is_there = self.has(name, *arguments, room, ctypes.c_uint(TEXT_BYTES))
        except Failed:
            return ""
        return decoded(room) if is_there else ""

    def list(self, name: str, kind: Any, most: int, before: Sequence[Any]) -> list[Any] | None:
        """Return the items of a list call: `before`, then the count, then the items; None: no such list here.

        A count above `most` is not believed. Raises Failed.
        """
        count = ctypes.c_uint(0)
        items: Any = None
        for _ in range(TRIES):
            code = self.call(name, *before, ctypes.byref(count), items)
            if code in ABSENT:
                return None
            if code == SUCCESS and items is None and count.value == 0:
                return []
            if code not in (SUCCESS, INSUFFICIENT_SIZE):
                self.errors[str(code)] += 1
                raise Failed(f"{name}: {self._meaning(code)}")
            if count.value > most:
                self.errors["count"] += 1
                raise Failed(f"{name}: {count.value} items cannot be")
            if code == SUCCESS and items is not None:
                return list(items[: min(count.value, len(items))])
            count = ctypes.c_uint(min(most, count.value + 4))  # a little more: it may be growing
            items = (kind * count.value)()
        self.errors[str(INSUFFICIENT_SIZE)] += 1
        raise Failed(f"{name}: grows faster than it can be read")


def subject_of(arguments: Sequence[Any]) -> int | None:
    """Return what a call is about: the address or number that is its first argument; None: neither."""
    if not arguments:
        return None
    first = arguments[0]
    if isinstance(first, ctypes._Pointer):
        return ctypes.cast(first, ctypes.c_void_p).value
    value = getattr(first, "value", None)
    return value if isinstance(value, int) else None


def decoded(room: Any) -> str:
    return bytes(room.value).decode("utf-8", "replace")
