# SPDX-License-Identifier: Apache-2.0
"""Installs the libraries in a folder with stable paths, for containers and for LD_PRELOAD.

A library in use is never modified.  Each build has its own name, `libgpulimit-<build id>.so`, and the plain
name is a symbolic link that is switched atomically.  A program that starts before the switch has the old
library, and one that starts after it the new one; the library is never missing.  Builds that no process maps
are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from limiter import library_store, paths
from limiter.build_id import build_id
from limiter.errors import GpulimitError

LIBRARIES = ("libgpulimit.so", "libgpupath.so")
VERSIONED = re.compile(r"(libgpulimit|libgpupath)-[0-9a-f]{16}\.so")
MAPPED = re.compile(r"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+) ", re.MULTILINE)


class CannotInstall(GpulimitError):
    """The folder cannot be written."""


def default_folder() -> Path:
    """Return the folder of libraries for `gpulimit run --container`: the system's, or the user's own."""
    if os.geteuid() == 0:
        return Path("/var/lib/gpulimit/lib")
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "gpulimit" / "lib"


def publish(folder: Path, source: Path | None = None) -> Path:
    """Install this build's libraries in `folder`; return the path of libgpulimit.so there.

    A second call changes nothing.  Raises NotInstalled, CannotInstall, library_store.NotPlaced.
    """
    source = source or paths.library().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        current = {place(paths.existing(source / name), folder) for name in LIBRARIES}
        remove_unused(folder, current)
    except OSError as error:
        raise CannotInstall(f"{error.filename or folder}: {error.strerror}") from error
    return folder / LIBRARIES[0]


def place(library: Path, folder: Path) -> str:
    """Copy a library under the name of its build, check it, and switch the link; return that name."""
    name = f"{library.stem}-{build_id(library)[:16]}.so"
    library_store.put(folder / name, library.read_bytes())
    library_store.check(folder / name)
    link = folder / library.name
    if not link.is_symlink() or link.readlink() != Path(name):
        switch(link, name)
    return name


def switch(link: Path, name: str) -> None:
    """Point the link at another file, atomically."""
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)


def remove_unused(folder: Path, current: set[str]) -> None:
    """Remove builds that no process maps.  Only root can see that; other users keep them."""
    old = [path for path in folder.iterdir() if VERSIONED.fullmatch(path.name) and path.name not in current]
    if old and os.geteuid() == 0:
        used = set(mapped_files())
        for path in old:
            if key_of(path) not in used:
                path.unlink(missing_ok=True)


def key_of(path: Path) -> tuple[int, int, int]:
    """Return a file's key in /proc/PID/maps of any container: device (two numbers) and inode."""
    state = path.stat()
    return os.major(state.st_dev), os.minor(state.st_dev), state.st_ino


def mapped_files() -> Iterator[tuple[int, int, int]]:
    """Yield the files that processes of this machine map."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            for major, minor, inode in MAPPED.findall(maps.read_text(errors="replace")):
                yield int(major, 16), int(minor, 16), int(inode)
