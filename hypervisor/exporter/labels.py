# SPDX-License-Identifier: Apache-2.0
"""Makes label values safe for a page, whatever names processes choose. Pure."""

from __future__ import annotations

from collections.abc import Iterable

MAX_VALUE_BYTES = 256
MAX_LABELS = 20


class Labels:
    """Names and values in the catalogue's order, and their text on a page. A label without a value is left
    out.
    """

    __slots__ = ("pairs", "text")

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs = tuple((name, clean(value)) for name, value in pairs if value)[:MAX_LABELS]
        self.text = ",".join(f'{name}="{escaped(value)}"' for name, value in self.pairs)

    def plus(self, name: str, value: str) -> Labels:
        """Return these labels and one more, whose value needs no cleaning."""
        more = Labels.__new__(Labels)
        more.pairs = (*self.pairs, (name, value))
        more.text = f'{self.text},{name}="{value}"' if self.text else f'{name}="{value}"'
        return more


NONE = Labels()


def clean(value: str) -> str:
    """Return a value without control characters and surrogates, of at most 256 bytes."""
    if value.isascii() and value.isprintable() and len(value) <= MAX_VALUE_BYTES:
        return value
    text = "".join(c if is_harmless(c) else "?" for c in value[: MAX_VALUE_BYTES * 4])
    return text.encode()[:MAX_VALUE_BYTES].decode(errors="ignore")


def is_harmless(character: str) -> bool:
    return character == " " or (character.isprintable() and not 0xD800 <= ord(character) <= 0xDFFF)


def escaped(value: str) -> str:
    """Return a value escaped for quotation marks."""
    if "\\" not in value and '"' not in value and "\n" not in value:
        return value
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
