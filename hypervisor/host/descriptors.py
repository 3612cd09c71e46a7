# SPDX-License-Identifier: Apache-2.0
"""File descriptors of this process: their limit, a reserve, and the names of shortages."""

from __future__ import annotations

import contextlib
import errno
import os
import resource

SHORTAGES = {
    errno.EMFILE: "no descriptors left",
    errno.ENFILE: "no descriptors left on this node",
    errno.ENOMEM: "no memory left",
    errno.ENOBUFS: "no memory left for sockets",
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "no space left in the quota of the disk",
    errno.EIO: "an input/output error",
    errno.EROFS: "the file system is read-only",
}
OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def shortage_of(error: BaseException | None) -> str | None:
    """Return the name of the shortage behind an error or its causes; None if it is no temporary shortage."""
    seen = 0
    while error is not None and seen < 10:
        if isinstance(error, MemoryError):
            return SHORTAGES[errno.ENOMEM]
        if isinstance(error, OSError) and error.errno in SHORTAGES:
            return SHORTAGES[error.errno]
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None


def raise_limit() -> tuple[int, str]:
    """Raise the soft limit on descriptors to the hard one; return it, and the reason of a failure or ""."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        return soft, str(error)
    return hard, ""


class Spare:
    """One reserved descriptor, to answer a peer when there are no others."""

    def __init__(self) -> None:
        self._fd = -1
        self.keep()

    def keep(self) -> None:
        """Reserve the descriptor again, if that is possible now."""
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def give(self) -> bool:
        """Free the descriptor for use; False if it is in use already."""
        if self._fd < 0:
            return False
        os.close(self._fd)
        self._fd = -1
        return True

    def close(self) -> None:
        self.give()
