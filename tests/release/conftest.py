# SPDX-License-Identifier: Apache-2.0
"""Fixtures for releases: wheels, built once for the same sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..conftest import locked
from ..daemon.conftest import daemon, daemon_env, run_dir  # noqa: F401

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("GPULIMIT_TEST_CACHE") or Path.home() / ".cache" / "gpulimit-tests")
"""What takes long to make and does not depend on the checkout: package files, a root of Debian."""
DATE = {"SOURCE_DATE_EPOCH": "1767225600"}
"""Not that of the last commit, since what was built before it is used again."""
SOURCES = ("csrc", "limiter", "hypervisor", "release", "deploy", "docs")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")


def sources() -> Iterator[Path]:
    """Yield the files that a release is made of, in order."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            parts = path.relative_to(ROOT).parts
            if path.is_file() and not {"__pycache__", "_lib"} & set(parts) and "_native." not in path.name:
                yield path
    yield from (ROOT / name for name in FILES if (ROOT / name).exists())


def fingerprint() -> str:
    """Return a name for the present sources."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def release(module: str, *arguments: str | Path, timeout: float = 300) -> str:
    """Run a module of release/; return what it printed."""
    argv = [sys.executable, "-m", f"release.{module}", *map(str, arguments)]
    done = subprocess.run(
        argv, cwd=ROOT, env=os.environ | DATE, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def newest(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def has_cross_compiler() -> bool:
    return shutil.which("aarch64-linux-gnu-gcc") is not None


@pytest.fixture(scope="session")
def wheels(built: Any) -> Path:
    """Folder with the source distribution and the wheels of these sources."""
    folder: Path = built.root / "release" / fingerprint()
    folder.parent.mkdir(exist_ok=True)
    with locked(built.root / "release.lock"):
        if not folder.exists():
            for old in folder.parent.iterdir():
                shutil.rmtree(old)
            fresh = folder.with_suffix(".fresh")
            arches = ["--arch", "x86_64"] + (["--arch", "aarch64"] if has_cross_compiler() else [])
            release("wheels", "--out", fresh, *arches)
            fresh.rename(folder)
    return folder


def unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def quiet(argv: Sequence[object], *, timeout: float = 120, **options: Any) -> str:
    """Run a program to its end; return what it printed, fail with it if it failed."""
    done = subprocess.run(
        [str(a) for a in argv], capture_output=True, text=True, timeout=timeout, check=False, **options
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def package_files(built: Any) -> Path:
    """Folder with the wheels that gpulimit needs, from the package index; kept from session to session."""
    lock = (ROOT / "release" / "requirements.lock").read_bytes()
    folder = CACHE / f"wheels-{hashlib.sha256(lock).hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "wheels.lock"):
        if not folder.exists():
            fresh = folder.with_suffix(".fresh")
            argv = [sys.executable, "-m", "release.lock", "--download", fresh]
            try:
                done = subprocess.run(
                    argv, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
                )
            except subprocess.TimeoutExpired:
                pytest.skip("SKIPPED: packages were not downloaded within 400 s")
            if done.returncode != 0:
                pytest.skip(f"SKIPPED: packages cannot be downloaded: {done.stderr.strip()[-300:]}")
            fresh.rename(folder)
    return folder


@pytest.fixture(scope="session")
def deb(built: Any, wheels: Path, package_files: Path) -> Path:
    """The Debian package of these sources, for this processor."""
    if sys.version_info[:2] != (3, 11) or shutil.which("dpkg-deb") is None:
        pytest.skip("SKIPPED: the Debian package is made with Python 3.11 and dpkg-deb")
    with locked(built.root / "deb.lock"):
        if not list(wheels.glob("*.deb")):
            wheel = newest(wheels, "*x86_64.whl")
            release("deb", wheel, "--out", wheels / "deb", "--wheels", package_files, "--quick")
            newest(wheels / "deb", "*.deb").rename(wheels / "gpulimit_amd64.deb")
    return newest(wheels, "*.deb")
