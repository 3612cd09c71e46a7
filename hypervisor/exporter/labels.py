# SPDX-License-Identifier: Apache-2.0
"""Label values fit for a page, whatever processes call themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterable

MOST_BYTES = 256
MOST_LABELS = 20
Labels = tuple[tuple[str, str], ...]
"""(name, value) in the catalogue's order; a label without a value is not there."""


def clean(value: str) -> str:
    """Return a value without control characters and half characters, of at most 256 bytes."""
    if value.isascii() and value.isprintable() and len(value) <= MOST_BYTES:
        return value
    text = "".join(c if is_harmless(c) else "?" for c in value[: MOST_BYTES * 4])
    return text.encode()[:MOST_BYTES].decode(errors="ignore")


def is_harmless(character: str) -> bool:
    return character == " " or (character.isprintable() and not 0xD800 <= ord(character) <= 0xDFFF)


def make(pairs: Iterable[tuple[str, str]]) -> Labels:
    """Return labels, clean, without those that say nothing."""
    return tuple((name, clean(value)) for name, value in pairs if value)[:MOST_LABELS]


def escaped(value: str) -> str:
    """Return a value as it stands between quotation marks."""
    if "\\" not in value and '"' not in value and "\n" not in value:
        return value
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def text_of(labels: Labels) -> str:
    """Return labels as they stand on a page, without braces."""
    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels)
