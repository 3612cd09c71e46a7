# SPDX-License-Identifier: Apache-2.0
"""Identifies the build of a library file, by the linker's build id or a digest of the file."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

PT_NOTE = 4
NT_GNU_BUILD_ID = 3
SEGMENT = struct.Struct("<I4xQ16xQ16x")  # type, offset, size in the file
NOTE = struct.Struct("<III")  # bytes of the name, bytes of the content, type


def build_id(path: Path) -> str:
    """Return 40 hexadecimal digits that differ between any two builds.  Raises OSError."""
    data = path.read_bytes()
    try:
        return noted(data) or hashlib.sha256(data).hexdigest()[:40]
    except (struct.error, OverflowError):  # not an ELF file, or truncated
        return hashlib.sha256(data).hexdigest()[:40]


def noted(data: bytes) -> str | None:
    """Return the build id of a 64-bit little-endian ELF file; None if it has none."""
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        kind, offset, length = SEGMENT.unpack_from(data, table + index * size)
        if kind == PT_NOTE:
            found = in_notes(data[offset : offset + length])
            if found:
                return found
    return None


def in_notes(notes: bytes) -> str | None:
    at = 0
    while at + NOTE.size <= len(notes):
        name_size, size, kind = NOTE.unpack_from(notes, at)
        name = at + NOTE.size
        content = name + (name_size + 3 & ~3)
        if kind == NT_GNU_BUILD_ID and notes[name : name + 4] == b"GNU\0":
            return notes[content : content + size].hex()
        at = content + (size + 3 & ~3)
    return None
