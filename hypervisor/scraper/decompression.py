# SPDX-License-Identifier: Apache-2.0
"""Collects a response body, compressed or not, within bounds. Pure."""

from __future__ import annotations

import zlib

from hypervisor.scraper.errors import FetchError

GZIP = 16 + zlib.MAX_WBITS


class Body:
    """Collects a body; `take` refuses a body that is too long before it is in memory.

    `most_received` bounds the bytes on the wire, `most` the decompressed bytes.
    """

    def __init__(self, encoding: str, *, most_received: int, most: int) -> None:
        """Create an empty body. Raises FetchError for an encoding that was not requested."""
        if encoding not in ("", "identity", "gzip"):
            raise FetchError("encoding", f"the page is packed with {encoding[:40]!r}")
        self._unpacker = zlib.decompressobj(GZIP) if encoding == "gzip" else None
        self._most_received, self._most = most_received, most
        self._received = 0
        self._data = bytearray()

    def take(self, chunk: bytes) -> None:
        """Add received bytes. Raises FetchError."""
        self._received += len(chunk)
        if self._received > self._most_received:
            raise FetchError("too_large", f"more than {self._most_received} bytes came")
        if self._unpacker is None:
            self._data += chunk
        else:
            self._unpack(self._unpacker, chunk)
        if len(self._data) > self._most:
            raise FetchError("too_large", f"the page has more than {self._most} bytes")

    def _unpack(self, unpacker: zlib._Decompress, chunk: bytes) -> None:
        if unpacker.eof:
            raise FetchError("encoding", "there is more behind the packed page")
        room = self._most + 1 - len(self._data)
        try:
            self._data += unpacker.decompress(chunk, room)
        except zlib.error as error:
            raise FetchError("encoding", f"the page cannot be unpacked: {error}") from error
        if unpacker.unused_data:
            raise FetchError("encoding", "there is more behind the packed page")

    def whole(self) -> bytes:
        """Return the body. Raises FetchError if it is truncated."""
        if self._unpacker is not None and not self._unpacker.eof:
            raise FetchError("encoding", "the packed page is cut off")
        return bytes(self._data)
