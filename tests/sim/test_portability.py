# SPDX-License-Identifier: Apache-2.0
"""One library file for every image: old and new glibc, musl, and the other processor."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT, SOURCES

CROSS = "aarch64-linux-gnu"
QEMU = "qemu-aarch64-static"
NEWEST_GLIBC = (2, 17)
QUOTA = {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "64MiB"}
WAYS = ["handle", "default", "proc1", "proc2", "chain"]


def tool(*names: str) -> None:
    """Skip loudly where one of these is not installed."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        pytest.skip(f"SKIPPED: not installed: {', '.join(missing)}; .ci/run installs what is needed")


def make(directory: str, *arguments: str) -> None:
    done = subprocess.run(
        ["make", "-s", "-j2", "-C", str(ROOT / directory), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


Build = Callable[[str], Path]


@pytest.fixture(scope="session")
def build(built: Any) -> Build:
    """Build the library with a compiler; return its folder."""

    def with_compiler(compiler: str) -> Path:
        tool(compiler)
        folder = Path(built.root / f"shim-{compiler}")
        make("csrc", f"OUT={folder}", f"CC={compiler}")
        return folder / "libgpulimit.so"

    return with_compiler


@pytest.fixture(scope="session")
def build_sim(built: Any) -> Build:
    """Build the simulated driver with a compiler; return its folder."""

    def with_compiler(compiler: str) -> Path:
        tool(compiler)
        folder = Path(built.root / f"sim-{compiler}")
        make("csrc/sim", f"OUT={folder}", f"CC={compiler}")
        return folder

    return with_compiler


COMPILERS = ["cc", "clang-14", f"{CROSS}-gcc"]


def read(*arguments: str | Path) -> str:
    tool("readelf")
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.mark.timeout(180)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_it_needs_nothing_but_an_old_libc(build: Build, compiler: str) -> None:
    library = build(compiler)
    symbols = read("--dyn-syms", library)
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([0-9.]+)", symbols)}
    assert versions and max(versions) <= NEWEST_GLIBC, sorted(versions)
    assert not re.findall(r"@(?!GLIBC_)\w+", symbols)
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", read("-d", library)) == ["libc.so.6"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_it_is_a_well_behaved_shared_object(build: Build, compiler: str) -> None:
    """No code that is written to, no executable stack, no constructor but the compiler's own."""
    library = build(compiler)
    dynamic, segments = read("-d", library), read("-l", library)
    assert "TEXTREL" not in dynamic
    assert "GNU_RELRO" in segments and "BIND_NOW" in dynamic
    assert re.search(r"GNU_STACK.*\bRW\b", segments) and not re.search(r"GNU_STACK.*RWE", segments)
    sizes = [int(n) for n in re.findall(r"\((?:INIT|FINI)_ARRAYSZ\)\s+(\d+)", dynamic)]
    # frame_dummy and its like; on aarch64 libgcc also asks which atomics the processor has.
    assert all(size <= 16 for size in sizes), dynamic


@pytest.mark.timeout(180)
def test_clang_s_build_holds_the_quota(
    build: Build, program: Any, run_process: Any, limited_env: dict[str, str]
) -> None:
    env = limited_env | QUOTA | {"LD_PRELOAD": str(build("clang-14"))}
    for way in WAYS:
        assert reach(run_process, [program("ways/reach", link=False), way], env) == "refused"


def reach(run_process: Any, argv: list[Any], env: Mapping[str, str]) -> str:
    ended = run_process(argv, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    return str(ended.stdout).strip()


# ---- the loader started as a command ----


def loader_of(binary: Path) -> str:
    (loader,) = re.findall(r"interpreter: (.*)\]", read("-l", binary))
    return str(loader)


def test_a_program_started_through_the_loader_is_held_to_its_quota(
    program: Any, run_process: Any, limited_env: dict[str, str]
) -> None:
    binary = program("ways/reach", link=False)
    for way in WAYS:
        assert reach(run_process, [loader_of(binary), binary, way], limited_env | QUOTA) == "refused"


# ---- musl ----

HELLO = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void *own(void *arg) { return arg; }
int main(int argc, char **argv)
{
	pthread_t thread;
	void *back = NULL;
	pthread_create(&thread, NULL, own, argv);
	pthread_join(thread, &back);
	int found = dlsym(RTLD_DEFAULT, "printf") != NULL, missing = dlsym(RTLD_DEFAULT, "no_such_thing") == NULL;
	const char *error = dlerror();
	printf("%d %d %d %d %s\n", argc, back == argv, found, missing, error ? "error" : "silent");
	free(malloc(100000));
	return 7;
}
"""


@pytest.mark.parametrize("through_loader", [False, True])
def test_a_musl_program_without_cuda_runs_as_ever(
    compile_c: Any, run_process: Any, limited_env: dict[str, str], through_loader: bool
) -> None:
    tool("musl-gcc")
    binary = compile_c(HELLO, compiler="musl-gcc", name="musl-hello")
    argv = [loader_of(binary), binary] if through_loader else [binary]
    for environ in ({}, QUOTA, {"GPULIMIT_MEMORY": "nonsense"}):
        ended = run_process(argv, env=limited_env | environ)
        assert (ended.returncode, ended.stdout, ended.stderr) == (7, "1 1 1 1 error\n", "")


def test_a_static_musl_program_runs_as_ever(
    compile_c: Any, run_process: Any, limited_env: dict[str, str]
) -> None:
    tool("musl-gcc")
    source = '#include <stdio.h>\nint main(void) { puts("static"); return 9; }\n'
    binary = compile_c(source, "-static", compiler="musl-gcc", name="musl-static")
    ended = run_process([binary], env=limited_env | QUOTA)
    assert (ended.returncode, ended.stdout, ended.stderr) == (9, "static\n", "")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("through_loader", [False, True])
def test_a_musl_program_with_cuda_is_held_to_its_quota(
    compile_c: Any, run_process: Any, limited_env: dict[str, str], build_sim: Build, through_loader: bool
) -> None:
    """By the library that was built for glibc."""
    sim = build_sim("musl-gcc")
    binary = compile_c(SOURCES / "ways" / "reach.c", "-D_GNU_SOURCE", compiler="musl-gcc", name="musl-reach")
    env = limited_env | QUOTA | {"LD_LIBRARY_PATH": str(sim)}
    prefix = [loader_of(binary)] if through_loader else []
    for way in WAYS:
        assert reach(run_process, [*prefix, binary, way], env) == "refused"


# ---- aarch64 ----


@pytest.fixture
def on_arm(
    build: Build, build_sim: Build, compile_c: Any, run_process: Any, limited_env: dict[str, str]
) -> Callable[..., str]:
    """Run a program of tests/c on aarch64, emulated where this is another processor, under the library."""
    if platform.machine() != "aarch64":
        tool(QEMU, f"{CROSS}-gcc")
    root = next(
        (p for p in (Path(f"/usr/{CROSS}"), Path("/")) if (p / "lib/ld-linux-aarch64.so.1").exists()), None
    )
    if root is None:
        pytest.skip("SKIPPED: no C library for aarch64")

    def run(name: str, *arguments: str, link: bool = False, **environ: str) -> str:
        compiler = f"{CROSS}-gcc"
        library, sim = build(compiler), build_sim(compiler)
        flags = ["-D_GNU_SOURCE", f"-I{SOURCES}", "-ldl", "-pthread"]
        if link:
            flags += ["-L", str(sim), "-lcuda", "-lnvidia-ml"]
        binary = compile_c(
            SOURCES / f"{name}.c", *flags, compiler=compiler, name=f"arm-{name.replace('/', '-')}"
        )
        inside = limited_env | QUOTA | environ
        inside |= {"LD_LIBRARY_PATH": str(sim), "LD_PRELOAD": str(library)}
        prefix: list[str] = []
        if platform.machine() != "aarch64":
            outer = {k: v for k, v in inside.items() if not k.startswith("LD_")}
            settings = ",".join(f"{k}={v}" for k, v in inside.items() if k.startswith("LD_"))
            prefix, inside = [QEMU, "-L", str(root), "-E", settings], outer
        return reach(run_process, [*prefix, binary, *arguments], inside)

    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_on_aarch64_a_program_is_held_to_its_quota(on_arm: Callable[..., str], way: str) -> None:
    assert on_arm("ways/reach", way) == "refused"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_aarch64_a_linked_program_works_under_quota_and_limit(on_arm: Callable[..., str]) -> None:
    assert on_arm("manners/refusal", link=True).split()[-2:] == ["0", "2"]
    out = on_arm("compute/load", "seconds=1", "kernel=2000000", "threads=2", link=True, GPULIMIT_COMPUTE="30")
    launches = int(re.findall(r"launches (\d+)", out)[0])
    assert 50 <= launches <= 350  # emulated: the point is that all of it runs


def test_the_other_processor_s_library_disturbs_nothing_but_says_so(
    build: Build, run_process: Any, limited_env: dict[str, str]
) -> None:
    """As when the wrong file was mounted: the loader's own line, and the program runs on."""
    env = limited_env | {"LD_PRELOAD": str(build(f"{CROSS}-gcc"))}
    ended = run_process(["/bin/true"], env=env)
    assert ended.returncode == 0
    assert "cannot be preloaded" in ended.stderr or os.uname().machine == "aarch64"
