# SPDX-License-Identifier: Apache-2.0
"""The folder of libraries for containers: never written to in place, never without a library."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from limiter import library_install
from limiter.build_id import build_id
from limiter.library_install import CannotInstall

from ..conftest import ROOT


@pytest.fixture
def source(built: Any, tmp_path: Path) -> Path:
    """A folder as installed, whose files a test may change."""
    folder = tmp_path / "installed"
    folder.mkdir()
    for name in library_install.LIBRARIES:
        (folder / name).write_bytes((built.lib / name).read_bytes())
    return folder


def another_build(library: Path) -> None:
    """Change a library's build id, and nothing else."""
    data = library.read_bytes()
    old = bytes.fromhex(build_id(library))
    library.write_bytes(data.replace(old, hashlib.sha1(old).digest(), 1))  # noqa: S324


def test_a_build_id_is_what_readelf_says(built: Any, tmp_path: Path) -> None:
    said = subprocess.run(["readelf", "-n", built.library], capture_output=True, text=True, check=True).stdout
    assert f"Build ID: {build_id(built.library)}" in said


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 60, b"#!/bin/sh\n", b"\x7fELF\x02\x01" + b"\0" * 60],
)
def test_a_file_without_a_build_id_has_its_digest(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert build_id(path) == hashlib.sha256(data).hexdigest()[:40]


def test_every_cut_short_library_has_some_id(built: Any, tmp_path: Path) -> None:
    data = built.path_library.read_bytes()
    path = tmp_path / "cut"
    for size in range(0, len(data), 97):
        path.write_bytes(data[:size])
        assert len(build_id(path)) == 40


def test_libraries_lie_under_the_name_of_their_build(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    path = library_install.publish(folder, source)
    assert path == folder / "libgpulimit.so"
    for name in library_install.LIBRARIES:
        link = folder / name
        assert str(link.readlink()) == f"{link.stem}-{build_id(source / name)[:16]}.so"
        assert link.read_bytes() == (source / name).read_bytes()
        assert link.stat().st_mode & 0o777 == 0o644


def test_doing_it_again_touches_nothing(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    library_install.publish(folder, source)
    before = {path: path.lstat().st_ino for path in folder.iterdir()}
    library_install.publish(folder, source)
    assert {path: path.lstat().st_ino for path in folder.iterdir()} == before


def test_a_new_build_leaves_the_old_file_to_those_who_map_it(
    source: Path, tmp_path: Path, start_process: Any
) -> None:
    folder = tmp_path / "shelf"
    path = library_install.publish(folder, source)
    old = path.resolve()
    inode, content = old.stat().st_ino, old.read_bytes()
    user = start_process(["/bin/sleep", "60"], env={"LD_PRELOAD": str(path)})
    while "libgpulimit" not in Path(f"/proc/{user.pid}/maps").read_text():
        assert user.poll() is None
    another_build(source / "libgpulimit.so")
    library_install.publish(folder, source)
    assert path.resolve() != old
    assert (old.stat().st_ino, old.read_bytes()) == (inode, content)
    assert "(deleted)" not in Path(f"/proc/{user.pid}/maps").read_text()
    if os.geteuid() == 0:
        user.kill()
        user.wait()
        library_install.publish(folder, source)
        assert not old.exists()


def test_a_damaged_copy_is_replaced_not_repaired(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    path = library_install.publish(folder, source).resolve()
    before = path.stat().st_ino
    with path.open("r+b") as handle:
        handle.truncate(100)
    os.link(path, tmp_path / "mapped")
    library_install.publish(folder, source)
    assert path.read_bytes() == (source / "libgpulimit.so").read_bytes()
    assert path.stat().st_ino != before
    assert (tmp_path / "mapped").stat().st_size == 100


@pytest.mark.timeout(180)
def test_there_is_a_library_at_every_moment(
    built: Any,
    source: Path,
    tmp_path: Path,
    compile_c: Any,
    start_process: Any,
    sim_env: dict[str, str],
) -> None:
    """A hundred upgrades under programs that start, and under one that works: none misses it or dies."""
    folder = tmp_path / "shelf"
    path = library_install.publish(folder, source)
    done = threading.Event()
    tests = ROOT / "tests" / "c"
    driver = ("-Wl,--no-as-needed", "-L", str(built.sim), "-lcuda", "-lnvidia-ml")
    flags = ("-D_GNU_SOURCE", f"-I{tests}", *driver)
    tenant = compile_c(tests / "release" / "tenant.c", *flags, name="release-tenant")
    quota = {"LD_PRELOAD": str(path), "GPULIMIT_MEMORY": "64MiB", "GPULIMIT_SIM_PROFILE": "small"}
    working = start_process([tenant, "7"], env=sim_env | quota)
    assert working.stdout.readline() == "ready\n"

    def upgrade() -> None:
        try:
            for _ in range(100):
                another_build(source / "libgpulimit.so")
                library_install.publish(folder, source)
        finally:
            done.set()

    upgrader = threading.Thread(target=upgrade)
    upgrader.start()
    starts = 0
    while not done.is_set() or starts < 20:
        ended = subprocess.run(["/bin/true"], env={"LD_PRELOAD": str(path)}, capture_output=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, b"")
        starts += 1
    upgrader.join()
    working.terminate()
    said, _ = working.communicate(timeout=30)
    assert working.returncode == 0, said


def test_two_at_once_agree(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    code = (
        "import sys, pathlib; from limiter import library_install; "
        "library_install.publish(*map(pathlib.Path, sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", code, str(folder), str(source)]
    both = [subprocess.Popen(argv) for _ in range(4)]
    assert [process.wait(30) for process in both] == [0, 0, 0, 0]
    assert sorted(p.name for p in folder.iterdir() if p.is_symlink()) == sorted(library_install.LIBRARIES)
    assert len(list(folder.iterdir())) == 4


def test_a_folder_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotInstall, match=str(tmp_path / "file")):
        library_install.publish(tmp_path / "file" / "shelf", source)
