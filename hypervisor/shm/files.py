# SPDX-License-Identifier: Apache-2.0
"""The daemon's files in /dev/shm, a folder where any user may have put anything under any name.

A file is used only if it is a plain file of the right owner and size with one name. Another one is made under
a name that cannot be foreseen, ready for use, and takes its place in one step, whatever is there. What was in
the way is removed after that. So no file of another user decides what the daemon can do.

Record locks tell who lives: see csrc/segment/alive.h. Locks between daemons are on a file of mode 0600.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import posix_ipc
from limiter._native import lib

from hypervisor.errors import SegmentError, SegmentFull, SegmentHeld
from limiter import segment

ASIDE, LOCK = segment.ASIDE_PREFIX, segment.LOCK_PREFIX
MAX_TRIES = 20
"""To put a file in place: a try is lost to another daemon, or to a tenant's process, that does the same."""
FULL = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
NOT_THE_FILES = (*FULL, errno.EIO)
"""Opening failed for want of something: that says nothing of the file."""


class Found(NamedTuple):
    """A name's file, or the obstacle that has the name."""

    fd: int = -1
    """Descriptor of a file that can be used; -1: there is none."""
    obstacle: str = ""
    """Reason why what is there cannot be used; "": nothing has the name, or the file is fit."""
    inode: int = 0
    """Inode of the obstacle, where it could be opened."""


NOTHING = Found()


class ShmFiles:
    """Opens, makes and removes them. `told(name, reason)` hears of each file that was in the way."""

    def __init__(self, told: Callable[[str, str], None], directory: Path = segment.DIRECTORY) -> None:
        self._told = told
        self._directory = directory

    def open(self, name: str, size: int, *, owner: int, is_private: bool = False) -> Found:
        """Open a file if it can be used. `is_private`: only its owner may. Raises SegmentError."""
        # O_NONBLOCK: opening a FIFO put there must not hang.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        path = self._directory / name
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            return Found()
        except OSError as error:
            if error.errno in NOT_THE_FILES:
                raise error_of(path, error) from error
            return Found(obstacle=f"it is not a plain file ({error.strerror})")
        reason = "it could not be looked at"
        try:
            with told_as_ours(path):
                status = os.fstat(fd)
                reason = unfit(status, size, owner, is_private=is_private)
                if reason and not unfit(status, status.st_size, owner, is_private=True):
                    refuse_living(path, fd, reason)
        finally:
            if reason:
                os.close(fd)
        return Found(obstacle=reason, inode=status.st_ino) if reason else Found(fd)

    def make(
        self, name: str, size: int, *, mode: int, owner: int, room: int = 0, instead: Found = NOTHING
    ) -> int | None:
        """Put a new file in place, all zero; return its descriptor. `room`: so much of it has memory.

        `instead`: what has the name now. None: a file has appeared meanwhile, and is to be looked at. Raises
        SegmentError.
        """
        fresh = f"{ASIDE}{secrets.token_hex(12)}"
        fd = self._fresh(name, fresh, size, mode=mode, owner=owner, room=room)
        try:
            is_placed = self._rename(fresh, name, is_exchange=bool(instead.obstacle))
            if is_placed and instead.obstacle and self._is_another(fresh, size, owner, instead):
                self._rename(fresh, name, is_exchange=True)
                is_placed = False
        except OSError as error:
            self._discard(fresh, fd)
            raise error_of(self._directory / name, error) from error
        if not is_placed:
            self._discard(fresh, fd)
            return None
        if instead.obstacle:
            self._told(name, f"{instead.obstacle}{self._clear(fresh)}")
        return fd

    def _is_another(self, aside: str, size: int, owner: int, seen: Found) -> bool:
        """True if a file came away that is fit for use, and not the one that was seen: another daemon's."""
        try:
            status = (self._directory / aside).lstat()
        except FileNotFoundError:
            return False
        return status.st_ino != seen.inode and not unfit(status, size, owner)

    def lock(self, name: str) -> int:
        """Return the descriptor of a file of the daemon's own, locked. Raises SegmentHeld."""
        owner = os.geteuid()
        for _ in range(MAX_TRIES):
            found = self.open(LOCK + name, 0, owner=owner, is_private=True)
            fd: int | None = found.fd
            if found.fd < 0:
                fd = self.make(LOCK + name, 0, mode=0o600, owner=owner, instead=found)
            if fd is None:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise SegmentHeld(
                    f"another daemon of this node is running ({self._directory / (LOCK + name)} is held); a "
                    "second one needs its own --state-segment, --socket and --metrics-addr"
                ) from None
            except OSError as error:
                os.close(fd)
                raise error_of(self._directory / (LOCK + name), error) from error
            if self._is_still_named(LOCK + name, fd):
                return fd
            os.close(fd)
        raise SegmentError(f"{self._directory / (LOCK + name)}: another process replaces it without pause")

    def is_named(self, name: str, fd: int) -> bool:
        """True if a name is that of an open file."""
        try:
            return os.path.samestat((self._directory / name).lstat(), os.fstat(fd))
        except FileNotFoundError:
            return False

    def _is_still_named(self, name: str, fd: int) -> bool:
        """Return what `is_named` does; close the file where that fails."""
        try:
            with told_as_ours(self._directory / name):
                return self.is_named(name, fd)
        except SegmentError:
            os.close(fd)
            raise

    def unlink(self, name: str) -> None:
        """Remove a file, if it is there. Raises SegmentError."""
        with told_as_ours(self._directory / name), contextlib.suppress(FileNotFoundError):
            (self._directory / name).unlink()

    def unlink_dead(self, name: str, fd: int) -> bool:
        """Remove a tenant's file unless a process lives in it or is about to; True: it has gone.

        Processes join under the lock on byte 0, and look after that whether the file still has its name.
        """
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError:
            return False
        try:
            with told_as_ours(self._directory / name):
                if segment.is_living(fd):
                    return False
                if self.is_named(name, fd):
                    self.unlink(name)
                return True
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN, 1, 0, os.SEEK_SET)

    def _fresh(self, name: str, fresh: str, size: int, *, mode: int, owner: int, room: int) -> int:
        """Return the descriptor of a new file of another name."""
        path = self._directory / name
        try:
            made = posix_ipc.SharedMemory(f"/{fresh}", posix_ipc.O_CREX, mode=mode, size=0)
        except (OSError, posix_ipc.Error) as error:
            raise error_of(path, error) from error
        fd: int = made.fd
        try:
            os.ftruncate(fd, size)
            os.fchmod(fd, mode)  # whatever the umask
            if room:
                os.posix_fallocate(fd, 0, room)
            if owner != os.geteuid():
                os.fchown(fd, owner, -1)
        except PermissionError as error:
            self._discard(fresh, fd)
            raise SegmentError(
                f"cannot give {name} to user {owner}: the daemon must run as root to serve others"
            ) from error
        except OSError as error:
            self._discard(fresh, fd)
            raise error_of(path, error) from error
        return fd

    def _rename(self, fresh: str, name: str, *, is_exchange: bool) -> bool:
        paths = [os.fsencode(self._directory / part) for part in (fresh, name)]
        failure = -int(lib.gl_node_rename(*paths, is_exchange))
        if failure in (errno.EINVAL, errno.ENOSYS):  # the kernel cannot do it in one step
            return self._rename_by_steps(fresh, name, is_exchange=is_exchange)
        if failure in (errno.ENOENT, errno.EEXIST):  # what was in the way has gone, or something has come
            return False
        if failure:
            raise OSError(failure, os.strerror(failure))
        return True

    def _rename_by_steps(self, fresh: str, name: str, *, is_exchange: bool) -> bool:
        """Do the same where another process may see that the name is free for a moment."""
        place, new, old = self._directory / name, self._directory / fresh, self._directory / f"{fresh}.old"
        if is_exchange:
            place.rename(old)
        try:
            os.link(new, place, follow_symlinks=False)
        except FileExistsError:
            return False
        new.unlink()
        if is_exchange:
            old.rename(new)
        return True

    def _clear(self, aside: str) -> str:
        """Remove what was in the way; return what is to be said of a folder that cannot be."""
        path = self._directory / aside
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                path.rmdir()
            else:
                path.unlink()
        except FileNotFoundError:
            return ""
        except OSError:
            return f"; it is now {path}"
        return ""

    def _discard(self, fresh: str, fd: int) -> None:
        os.close(fd)
        with contextlib.suppress(SegmentError):
            self.unlink(fresh)


def unfit(status: os.stat_result, size: int, owner: int, *, is_private: bool = False) -> str:
    """Return why an open file cannot be used; "": it can."""
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        return "it is not a plain file with one name"
    if status.st_uid != owner:
        return f"it belongs to user {status.st_uid}"
    if status.st_size != size:
        return f"it has {status.st_size} bytes and not {size}"
    if is_private and status.st_mode & 0o077:
        return "other users may open it"
    return ""


def refuse_living(path: Path, fd: int, reason: str) -> None:
    """Raise SegmentHeld where a process lives in a tenant's file that cannot be used.

    What that process holds is in those books and in no others: with new ones the tenant would get its quota
    a second time.
    """
    if segment.is_living(fd):
        raise SegmentHeld(f"{path} cannot be used ({reason}) while processes that are in it live: end them")


@contextlib.contextmanager
def told_as_ours(path: Path) -> Iterator[None]:
    """Raise SegmentError for a call on a file that fails."""
    try:
        yield
    except OSError as error:
        raise error_of(path, error) from error


def error_of(path: Path, error: Exception) -> SegmentError:
    """Return what to raise for a call that failed."""
    text = f"cannot use {path}: {getattr(error, 'strerror', None) or error}"
    return SegmentFull(text) if getattr(error, "errno", None) in FULL else SegmentError(text)
