# SPDX-License-Identifier: Apache-2.0
"""The file with the number of tenants that share a card, read again when it changes."""

from __future__ import annotations

import logging
from pathlib import Path

from hypervisor.metrics.sharing_ratio import Ratios, parse

logger = logging.getLogger(__name__)


class RatioFile:
    """A file that may be missing, wrong for a while, or not wanted at all."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._seen: tuple[int, int] | None = None
        self._ratios = Ratios()

    def read(self) -> Ratios:
        """Return what the file says; one that cannot be read leaves what it last said."""
        if self._path is None:
            return self._ratios
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._seen = seen
                self._ratios = parse(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError) or self._seen is not None:
                logger.warning("%s: %s", self._path, error)
            self._seen = None if isinstance(error, FileNotFoundError) else self._seen
        return self._ratios
