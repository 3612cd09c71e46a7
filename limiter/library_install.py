# SPDX-License-Identifier: Apache-2.0
"""A folder with the libraries for others to map: containers, and whatever names a path that must not move.

A library that runs is never written to.  Each build lies under a name of its own,
`libgpulimit-<build id>.so`, and the plain name is a symbolic link that is switched in one step: who starts
before the switch has the old one, who starts after it has the new one, and there is no moment without.  Old
builds go once no process maps them.
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
    """Return where `gpulimit run --container` keeps libraries: the system's folder, or the user's own."""
    if os.geteuid() == 0:
        return Path("/var/lib/gpulimit/lib")
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "gpulimit" / "lib"


def publish(folder: Path, source: Path | None = None) -> Path:
    """Put this installation's libraries into `folder`; return the path of libgpulimit.so there.

    Doing it again changes nothing.  Raises NotInstalled, CannotInstall, library_store.NotPlaced.
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
    """Copy a library under the name of its build, try it, and switch the link; return that name."""
    name = f"{library.stem}-{build_id(library)[:16]}.so"
    library_store.put(folder / name, library.read_bytes())
    library_store.check(folder / name)
    link = folder / library.name
    if not link.is_symlink() or link.readlink() != Path(name):
        switch(link, name)
    return name


def switch(link: Path, name: str) -> None:
    """Let the link name another file, in one step."""
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)


def remove_unused(folder: Path, current: set[str]) -> None:
    """Remove builds that no process maps; another user than root cannot know that, and keeps them."""
    old = [path for path in folder.iterdir() if VERSIONED.fullmatch(path.name) and path.name not in current]
    if old and os.geteuid() == 0:
        used = set(mapped_files())
        for path in old:
            if key_of(path) not in used:
                path.unlink(missing_ok=True)


def key_of(path: Path) -> tuple[int, int, int]:
    """Return what /proc/PID/maps calls a file in any container: device, two numbers, and inode."""
    state = path.stat()
    return os.major(state.st_dev), os.minor(state.st_dev), state.st_ino


def mapped_files() -> Iterator[tuple[int, int, int]]:
    """Yield the files that processes of this machine map."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for major, minor, inode in MAPPED.findall(maps.read_text(errors="replace")):
                yield int(major, 16), int(minor, 16), int(inode)
