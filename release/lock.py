# SPDX-License-Identifier: Apache-2.0
"""Locks the versions of the packages that the Debian package carries, in release/requirements.lock.

    python -m release.lock           # asks the package index and rewrites the file
    python -m release.lock --check   # fails if the file lacks a package that pyproject.toml needs
    python -m release.lock --download DIR    # downloads the locked wheels of both processors

The lock is for Python 3.11 on both processors, wheels only, every file by its SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

from release.version import ROOT
from release.wheels import ARCHITECTURES

LOCK = ROOT / "release" / "requirements.lock"
EXTRAS = ("top",)
"""Not k8s: nodes of a cluster run the daemon from an image."""
PYTHON = "3.11"
GLIBCS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
HEADER = "# Made by `python -m release.lock`.\n"


def normal(name: str) -> str:
    """Return a package's name in the normal form of package indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted() -> list[str]:
    """Return the requirements of the base and of the extras that the Debian package has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(need for extra in EXTRAS for need in extras.get(extra, []))]


def platform_options(arch: str) -> list[str]:
    """Return pip's options for wheels of a processor."""
    options = ["--only-binary", ":all:", "--python-version", PYTHON, "--implementation", "cp"]
    for glibc in GLIBCS:
        options += ["--platform", f"{glibc}_{arch}"]
    return options


def resolve(folder: Path) -> dict[tuple[str, str], set[str]]:
    """Download the wheels for each processor; return their hashes by (name, version)."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for arch in ARCHITECTURES:
        target = folder / arch
        pip = [sys.executable, "-m", "pip", "download", "-q", "-d", str(target)]
        subprocess.run([*pip, *platform_options(arch), *wanted()], check=True)
        for path in target.iterdir():
            name, version = path.name.split("-")[:2]
            found[normal(name), version].add(hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = resolve(Path(folder))
    lines = [
        f"{name}=={version} {' '.join(f'--hash=sha256:{h}' for h in sorted(hashes))}"
        for (name, version), hashes in sorted(found.items())
    ]
    LOCK.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")


def download(target: Path) -> None:
    """Download the locked wheels of every processor."""
    for arch in ARCHITECTURES:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--require-hashes",
            "-d",
            str(target),
        ]
        subprocess.run([*pip, *platform_options(arch), "-r", str(LOCK)], check=True)


def locked() -> dict[str, str]:
    """Return the locked version of each package."""
    rows = re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(rows)


def missing() -> list[str]:
    """Return the requirements of pyproject.toml whose package the lock lacks."""
    have = locked()
    return [need for need in wanted() if normal(re.split(r"[^\w.-]", need)[0]) not in have]


def main() -> int:
    parser = argparse.ArgumentParser(prog="release.lock", description="Lock what the Debian package carries.")
    parser.add_argument("--check", action="store_true", help="only say what is missing")
    parser.add_argument("--download", type=Path, metavar="DIR", help="only fetch what is locked")
    options = parser.parse_args()
    if options.download:
        download(options.download)
    elif not options.check:
        write()
    for need in missing():
        print(f"release/requirements.lock lacks {need}: run `python -m release.lock`", file=sys.stderr)
    return 1 if missing() else 0


if __name__ == "__main__":
    sys.exit(main())
