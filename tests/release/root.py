# SPDX-License-Identifier: Apache-2.0
"""A minimal Debian 12, made once by mmdebstrap, and scripts that run in a throw-away copy of it.

A script has a pid namespace, /dev/shm and /run of its own, and no network; what it
leaves behind is gone with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ..conftest import locked
from .conftest import CACHE

PACKAGES = "python3,python3-venv"
SUITE = "bookworm"
# Runs first in the new namespaces; $1: folder for the copy, $2: the root, $3: files for the script.
ENTER = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/up,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount -t tmpfs -o mode=755 none run
mount -t tmpfs -o mode=755 none dev
for node in null zero full random urandom tty; do
	touch "dev/$node"
	mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 none dev/shm
mount -t devpts none dev/pts
mount --bind "$3" mnt
while read -r from to; do
	if [ -d "$from" ]; then mkdir -p "./$to"; else mkdir -p "./${to%/*}"; touch "./$to"; fi
	mount --bind "$from" "./$to"
	mount -o remount,bind,ro "./$to"
done < mnt/mounts
exec chroot . /bin/sh -e /mnt/script
"""


def debian() -> Path:
    """Return the root folder, making it where there is none; skip the test, saying why, if that cannot be."""
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: a root of Debian needs root")
    root = CACHE / f"{SUITE}-{PACKAGES.replace(',', '-')}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "root.lock"):
        if not root.exists():
            if shutil.which("mmdebstrap") is None:
                pytest.skip("SKIPPED: not installed: mmdebstrap; .ci/run installs what is needed")
            make(root)
    return root


def make(root: Path) -> None:
    fresh = root.with_suffix(".fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    argv = [
        "mmdebstrap",
        "-q",
        "--variant=minbase",
        f"--include={PACKAGES}",
        "--format=directory",
        SUITE,
        str(fresh),
    ]
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    argv += [str(sources)] if sources.exists() else []
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=500, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("SKIPPED: mmdebstrap made no root within 500 s")
    if done.returncode != 0:
        pytest.skip(f"SKIPPED: mmdebstrap made no root: {done.stderr.strip()[-300:]}")
    fresh.rename(root)


def run(
    script: str,
    files: Mapping[str, Path],
    folder: Path,
    *,
    mounts: Sequence[tuple[str, str]] = (),
    timeout: float = 240,
) -> str:
    """Run a shell script in a copy of Debian with these files in /mnt; return its output.

    `mounts` are files and folders of this machine, shown read-only under another path.
    """
    shared, copy = folder / "mnt", folder / "copy"
    shared.mkdir()
    copy.mkdir()
    for name, path in files.items():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, shared / name)
    (shared / "script").write_text(script)
    (shared / "mounts").write_text("".join(f"{source} {target}\n" for source, target in mounts))
    env = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
    }
    argv = [
        "unshare",
        "--mount",
        "--pid",
        "--ipc",
        "--net",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        ENTER,
        "enter",
    ]
    done = subprocess.run(
        [*argv, str(copy), str(debian()), str(shared)],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode != 0 and "mount" in done.stderr and "denied" in done.stderr:
        pytest.skip(f"SKIPPED: no mounts here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout
