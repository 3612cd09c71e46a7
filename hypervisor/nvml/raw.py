# SPDX-License-Identifier: Apache-2.0
"""Calls NVML directly for vGPU, MIG and GPM, where pynvml is wrong or incomplete.

pynvml reads a vGPU's memory into 32 bits, passes too large a size for its VM's id, and fails on an empty list
of processes (all versions from 12.535 to 13.615). The library is the one that pynvml has loaded. A missing
symbol counts as a call that is not supported.
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
"""Answers that mean "not available here", and are no errors."""
LASTING = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED})
"""Answers that stay the same until the driver, or the card's mode, changes."""
TEXT_BYTES = 256
MAX_UNSUPPORTED = 4096
TRIES = 3
"""Tries of a list call: a list may grow between the call for its length and the call for its items."""


class Failed(Exception):
    """A call failed with an error, which is counted already."""


class Raw:
    """The library, and counts of errors by NVML's error number."""

    def __init__(self, errors: Counter[str], library: Any = None) -> None:
        self._library = library or ctypes.CDLL("libnvidia-ml.so.1")
        self.errors = errors
        self._unsupported: dict[tuple[str, int | None], int] = {}
        """Lasting answers by call and first argument: a card's do not hold for its MIG devices."""

    def forget(self) -> None:
        """Forget lasting answers: the driver or the card's mode has changed."""
        self._unsupported.clear()

    def call(self, name: str, *arguments: Any) -> int:
        """Return NVML's answer. Arguments are ctypes values of the header's width.

        An unsupported call is made once per card. A vGPU's answers may change with its machine's driver.
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
        """Call; return False if it is not available here. Raises Failed."""
        code = self.call(name, *arguments)
        if code == SUCCESS:
            return True
        if code in ABSENT:
            return False
        self.errors[str(code)] += 1
        raise Failed(f"{name}: {self._meaning(code)}")

    def _meaning(self, code: int) -> str:
        """Return NVML's text for an error."""
        try:
            describe = self._library.nvmlErrorString
        except AttributeError:
            return f"error {code}"
        describe.restype = ctypes.c_char_p
        return (describe(code) or b"").decode("utf-8", "replace")[:TEXT_BYTES] or f"error {code}"

    def get(self, name: str, out: Any, *arguments: Any) -> Any:
        """Call with `out` as the last argument; return `out`, or None if the call fails."""
        try:
            return out if self.has(name, *arguments, ctypes.byref(out)) else None
        except Failed:
            return None

    def number(self, name: str, *arguments: Any) -> int | None:
        """Return the unsigned int in a call's last argument."""
        out = self.get(name, ctypes.c_uint(), *arguments)
        return None if out is None else int(out.value)

    def long(self, name: str, *arguments: Any) -> int | None:
        """Return the unsigned long long in a call's last argument."""
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
        """Return the items of a list call (`before`, then the count, then the items); None if not available.

        Raises Failed, also for a count above `most`.
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
    """Return a call's subject: the address or number in its first argument; None if it is neither."""
    if not arguments:
        return None
    first = arguments[0]
    if isinstance(first, ctypes._Pointer):
        return ctypes.cast(first, ctypes.c_void_p).value
    value = getattr(first, "value", None)
    return value if isinstance(value, int) else None


def decoded(room: Any) -> str:
    return bytes(room.value).decode("utf-8", "replace")
