# SPDX-License-Identifier: Apache-2.0
"""Builds the source distribution and, from it, one wheel per processor, all on this machine.

    python -m release.wheels [--out dist] [--arch x86_64 --arch aarch64]

The same sources, compiler and setuptools give the same bytes.  A wheel serves every Python from 3.11 on
(abi3) and every glibc from 2.17 on; the libraries that it carries for preloading also load with musl.  The
other processor's wheel needs Debian's cross compiler (gcc-aarch64-linux-gnu, libc6-dev-arm64-cross); nothing
of it is run here.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from limiter.about import DISTRIBUTION
from release.version import ROOT, epoch_s, version

ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = "2_17"
OLDEST_PYTHON = "cp311"


class CannotBuild(Exception):
    """A build that lacks something; the text names it and how to get it."""


def compiler(arch: str) -> str:
    """Return the C compiler for a processor; raise CannotBuild if there is none."""
    name = "gcc" if arch == platform.machine() else f"{arch}-linux-gnu-gcc"
    if shutil.which(name) is None:
        raise CannotBuild(f"no {name}: apt-get install gcc-{arch.replace('_', '-')}-linux-gnu")
    return name


def run(argv: Sequence[object], cwd: Path, env: dict[str, str]) -> None:
    """Run quietly.  Raises CannotBuild with what the program said."""
    done = subprocess.run(
        [str(a) for a in argv],
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        raise CannotBuild(f"{argv[0]} ended with {done.returncode}:\n{done.stdout[-8000:]}")


def clean_environment() -> dict[str, str]:
    """Return the environment for builds, without variables that change the result."""
    dropped = ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED", "MAKEFLAGS", "GPULIMIT_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return kept | {"SOURCE_DATE_EPOCH": str(epoch_s()), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}


def source_distribution(out: Path, work: Path) -> Path:
    """Make libgpulimit-VERSION.tar.gz in `out`, with the same bytes for the same sources."""
    fresh = work / "sdist"
    run([sys.executable, "setup.py", "-q", "sdist", "-d", fresh], ROOT, clean_environment())
    (made,) = fresh.glob(f"{DISTRIBUTION}-*.tar.gz")
    return repack(made, out / made.name)


def repack(source: Path, target: Path) -> Path:
    """Rewrite a tar.gz reproducibly: members sorted, owned by root, with one date."""
    epoch = epoch_s()
    with (
        tarfile.open(source) as old,
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda m: m.name):
            content = old.extractfile(member) if member.isfile() else None
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            member.mtime, member.pax_headers = epoch, {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, content)
    return target


def environment(arch: str, tree: Path) -> dict[str, str]:
    """Return what makes setup.py build for a processor and an old glibc."""
    cc = compiler(arch)
    flags = f"-g0 -ffile-prefix-map={tree}=. -include {tree}/release/old_glibc.h"
    # By name, so that a glibc that still has these apart loads them.  The preloaded libraries need neither.
    link = "-Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed -Wl,-s"
    return clean_environment() | {
        "CC": cc,
        "LDSHARED": f"{cc} -shared",
        "CFLAGS": f"-O2 {flags} {python_headers(tree)}",
        "LDFLAGS": link,
        "GPULIMIT_SHIM_CFLAGS": f"-g0 -ffile-prefix-map={tree}=.",
        "GPULIMIT_SHIM_LDFLAGS": "-Wl,-s",
        "GPULIMIT_SIM_CFLAGS": f"-O2 {flags}",
        "GPULIMIT_SIM_LDFLAGS": link,
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
    }


def python_headers(tree: Path) -> str:
    """Return the flag that lets Debian's python3-dev serve the other processor.

    Its pyconfig.h includes one by processor.  Both are 64-bit Linux; the limited API uses nothing that
    differs.
    """
    include = Path(sysconfig.get_path("include"))
    own = include.parent / f"{platform.machine()}-linux-gnu" / include.name / "pyconfig.h"
    if not own.exists():
        return ""
    for arch in ARCHITECTURES:
        other = tree / "include" / f"{arch}-linux-gnu" / include.name
        other.mkdir(parents=True, exist_ok=True)
        shutil.copy(own, other)
    return f"-I{tree}/include"


def wheel(arch: str, sdist: Path, out: Path, work: Path) -> Path:
    """Build the wheel of one processor from the source distribution."""
    folder = work / arch
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    tag = f"manylinux_{GLIBC}_{arch}"
    options = ["--py-limited-api", OLDEST_PYTHON, "--plat-name", tag, "-d", folder / "out"]
    run([sys.executable, "setup.py", "-q", "bdist_wheel", *options], tree, environment(arch, tree))
    (made,) = (folder / "out").glob("*.whl")
    return Path(shutil.move(made, out / made.name))


def build(out: Path, architectures: Sequence[str]) -> list[Path]:
    """Build all; return the files.  Raises CannotBuild before anything is built if a compiler is missing."""
    for arch in architectures:
        compiler(arch)
    version()
    os.umask(0o022)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpulimit-wheels-") as name:
        work = Path(name)
        sdist = source_distribution(out, work)
        return [sdist, *(wheel(arch, sdist, out, work) for arch in architectures)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="release.wheels", description="Build source distribution and wheels."
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES)
    options = parser.parse_args()
    try:
        for path in build(options.out.absolute(), options.arch or ARCHITECTURES):
            print(path)
    except (CannotBuild, ValueError) as error:
        print(f"release.wheels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
