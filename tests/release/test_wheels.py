# SPDX-License-Identifier: Apache-2.0
"""The wheels of both processors: what they need, what they hold, that they can be built again."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from release.wheels import source_distribution

from ..conftest import ROOT
from .conftest import has_cross_compiler, newest, quiet, release, unpack

CROSS = "aarch64-linux-gnu"
QEMU = "qemu-aarch64-static"
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
PRELOADED = {"libgpulimit.so", "libgpupath.so"}
# What every glibc has beside the loader's own name.
SYSTEM = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=sorted(MACHINES))
def content(request: pytest.FixtureRequest, wheels: Path, tmp_path_factory: Any) -> tuple[str, Path]:
    """A processor, and its wheel unpacked."""
    arch: str = request.param
    if arch == "aarch64" and not has_cross_compiler():
        pytest.skip(f"SKIPPED: not installed: {CROSS}-gcc; .ci/run installs what is needed")
    folder = tmp_path_factory.mktemp(arch)
    return arch, unpack(newest(wheels, f"*manylinux_2_17_{arch}.whl"), folder)


def shared_objects(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if ".so" in path.name)


def test_every_library_loads_with_an_old_glibc(content: tuple[str, Path]) -> None:
    arch, folder = content
    found = shared_objects(folder)
    assert {path.name for path in found} == PRELOADED | {
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "_native.abi3.so",
    }
    for path in found:
        text = quiet(["readelf", "-W", "-h", "-d", "--dyn-syms", "--version-info", path])
        versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", text)}
        assert versions and max(versions) <= (2, 17), path.name
        assert re.findall(r"Machine: +(.*)", text) == [MACHINES[arch]], path.name
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
        assert needed <= ({"libc.so.6"} if path.name in PRELOADED else SYSTEM), path.name
        assert "RPATH" not in text and "RUNPATH" not in text


def test_the_hook_needs_no_library_at_all(content: tuple[str, Path]) -> None:
    arch, folder = content
    hook = folder / "limiter/_lib/preload-hook"
    text = quiet(["readelf", "-W", "-h", "-l", "-d", hook])
    assert re.findall(r"Machine: +(.*)", text) == [MACHINES[arch]]
    assert "INTERP" not in text and "no dynamic section" in text
    assert str(ROOT).encode() not in hook.read_bytes() and hook.stat().st_size < 64 << 10


def test_libraries_bear_a_build_id_and_nothing_of_the_builder(content: tuple[str, Path]) -> None:
    _, folder = content
    for path in shared_objects(folder):
        data = path.read_bytes()
        assert b"/tmp/" not in data.replace(b"/tmp/gpulimit", b""), path.name
        assert str(ROOT).encode() not in data and str(Path.home()).encode() + b"/" not in data, path.name
        assert ".debug_info" not in quiet(["readelf", "-S", "-W", path])
        if path.name in PRELOADED:
            assert re.search(r"Build ID: [0-9a-f]{40}", quiet(["readelf", "-n", path])), path.name


def test_the_base_needs_little_and_the_rest_is_extra(content: tuple[str, Path]) -> None:
    _, folder = content
    metadata = Parser().parsestr(newest(folder, "*.dist-info/METADATA").read_text())
    needs = metadata.get_all("Requires-Dist") or []
    base = {re.split(r"[^\w-]", need)[0] for need in needs if "extra ==" not in need}
    assert base == {"aiohttp", "cffi", "nvidia-ml-py", "posix-ipc", "prometheus-client"}
    assert {"dev", "k8s", "top"} <= set(metadata.get_all("Provides-Extra") or [])


def same(one: Path, other: Path) -> bool:
    return hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest()


def test_a_second_build_has_the_same_bytes(wheels: Path, tmp_path: Path) -> None:
    release("wheels", "--out", tmp_path, "--arch", "x86_64")
    again = newest(tmp_path, "*.whl")
    assert same(again, wheels / again.name)


def test_a_second_source_distribution_has_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    made = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        made.append(source_distribution(folder, folder / "work"))
    assert same(*made)


@pytest.mark.parametrize("library", sorted(PRELOADED))
def test_the_other_processor_s_libraries_load_there(
    wheels: Path, tmp_path: Path, compile_c: Any, run_process: Any, library: str
) -> None:
    if not has_cross_compiler() or not shutil.which(QEMU) or platform.machine() == "aarch64":
        pytest.skip(f"SKIPPED: needs {CROSS}-gcc and {QEMU}; .ci/run installs what is needed")
    folder = unpack(newest(wheels, "*aarch64.whl"), tmp_path / "wheel") / "limiter" / "_lib"
    probe = compile_c(ROOT / "tests/c/path/probe.c", compiler=f"{CROSS}-gcc", name="path-arm")
    argv = [QEMU, "-L", f"/usr/{CROSS}", "-E", f"LD_PRELOAD={folder / library}", probe]
    done = run_process(argv, env={"GPULIMIT_PATH": "/added"}, expect=0)
    assert done.stderr == ""
    assert ("PATH=/added" in done.stdout.splitlines()) == (library == "libgpupath.so")


def test_the_other_processor_s_wheel_holds_a_quota(
    wheels: Path, tmp_path: Path, compile_c: Any, run_process: Any, limited_env: dict[str, str]
) -> None:
    """Its library over its simulated driver, emulated."""
    if not has_cross_compiler() or not shutil.which(QEMU) or platform.machine() == "aarch64":
        pytest.skip(f"SKIPPED: needs {CROSS}-gcc and {QEMU}; .ci/run installs what is needed")
    folder = unpack(newest(wheels, "*aarch64.whl"), tmp_path / "wheel") / "limiter" / "_lib"
    tests = ROOT / "tests" / "c"
    flags = ("-D_GNU_SOURCE", f"-I{tests}", "-ldl", "-pthread")
    binary = compile_c(tests / "ways" / "reach.c", *flags, compiler=f"{CROSS}-gcc", name="arm-ways-reach")
    inner = {"LD_PRELOAD": folder / "libgpulimit.so", "LD_LIBRARY_PATH": folder / "sim"}
    env = {k: v for k, v in limited_env.items() if k not in inner}
    env |= {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "64MiB"}
    settings = ",".join(f"{k}={v}" for k, v in inner.items())
    argv = [QEMU, "-L", f"/usr/{CROSS}", "-E", settings, binary, "handle"]
    assert run_process(argv, env=env, expect=0).stdout.strip() == "refused"
