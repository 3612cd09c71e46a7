# SPDX-License-Identifier: Apache-2.0
"""libgpupath.so in real programs: shells, chains of execs, setuid, other C libraries and processors."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..conftest import make, needs_program
from .conftest import PROBE

ROOT = Path(__file__).parents[2]
CROSS = "aarch64-linux-gnu"
QEMU = "qemu-aarch64-static"
# The commands of the documentation with what they print: `export LD_PRELOAD`, then these.
EXAMPLES = [
    (
        "TF_PATH=/usr/custom/bin env | grep PATH",
        "PATH=/home/user/bin:/usr/local/sbin:/bin",
        "PATH=/home/user/bin:/usr/local/sbin:/bin:/usr/custom/bin",
    ),
    ("TF_LD_PRELOAD=/path/to/custom.so env | grep LD_PRELOAD", "", "LD_PRELOAD={library}:/path/to/custom.so"),
    (
        "TF_LD_LIBRARY_PATH=/usr/local/cuda/lib64 env | grep LD_LIBRARY_PATH",
        "LD_LIBRARY_PATH=/usr/lib64:/lib64",
        "LD_LIBRARY_PATH=/usr/lib64:/lib64:/usr/local/cuda/lib64",
    ),
    (
        "TF_PREPEND_PATH=/opt/custom/bin env | grep PATH",
        "PATH=/home/user/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PATH=/opt/custom/bin:/home/user/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
]


def bare(**variables: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", **variables}


def lines(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


@pytest.mark.parametrize("family", ["TF_", "GPULIMIT_"])
@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(("command", "before", "printed"), EXAMPLES)
def test_the_documented_examples(
    run_process: Any,
    library: Path,
    tmp_path: Path,
    command: str,
    before: str,
    printed: str,
    shell: str,
    family: str,
) -> None:
    path = tmp_path / "libadd_path.so"
    path.symlink_to(library)
    env = bare() | lines(before)
    script = f'export LD_PRELOAD={path}\n{shell} -c "{command.replace("TF_", family)}"\n'
    done = run_process(["/bin/sh", "-c", script], env=env, expect=0)
    assert printed.format(library=path) in done.stdout.splitlines()
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_any_number_of_execs_adds_once(run_process: Any, library: Path, tmp_path: Path, shell: str) -> None:
    script = tmp_path / "again"
    script.write_text(f'#!/bin/{shell}\nif [ "$1" -gt 0 ]; then exec "$0" $(($1 - 1)); fi\nenv\n')
    script.chmod(0o755)
    env = bare(
        LD_PRELOAD=f"{library} libm.so.6",
        GPULIMIT_PATH="/a:/b",
        TF_PREPEND_PATH="/c:/a",
        GPULIMIT_LD_LIBRARY_PATH="/l:/m",
        GPULIMIT_LD_PRELOAD="libdl.so.2 libm.so.6",
    )
    seen = lines(run_process([script, "30"], env=env, expect=0).stdout)
    assert seen["PATH"] == "/c:/a:/usr/bin:/bin:/b"
    assert seen["LD_LIBRARY_PATH"] == "/l:/m"
    assert seen["LD_PRELOAD"] == f"{library} libm.so.6:libdl.so.2"


def test_a_program_finds_what_was_added(run_process: Any, library: Path, tmp_path: Path) -> None:
    """By its own PATH look-up, in the same process."""
    tool = tmp_path / "tool-of-the-test"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    env = bare(LD_PRELOAD=str(library), GPULIMIT_PATH=str(tmp_path))
    assert run_process(["/usr/bin/env", "tool-of-the-test"], env=env, expect=0).stdout == "found\n"


@pytest.mark.parametrize("present", [True, False])
def test_main_s_argument_environ_and_getenv_agree(
    run_process: Any, library: Path, probe: Path, present: bool
) -> None:
    env = {"LD_PRELOAD": str(library), "GPULIMIT_PATH": "/x"} | ({"PATH": "/bin"} if present else {})
    seen = run_process([probe], env=env, expect=0).stdout
    assert lines(seen)["PATH"] == ("/bin:/x" if present else "/x")
    assert "main has another" not in seen


def test_nothing_is_taken_from_the_program(run_process: Any, library: Path, compile_c: Any) -> None:
    """Its malloc, its setenv, its getenv are not called, and errno stays."""
    binary = compile_c(PROBE, "-DOWN_FUNCTIONS", "-rdynamic", "-fno-builtin", name="path-own")
    env = {"LD_PRELOAD": str(library), "GPULIMIT_PATH": "/x", "GPULIMIT_PREPEND_LD_LIBRARY_PATH": "/y"}
    seen = lines(run_process([binary], env=env, expect=0).stdout)
    assert (seen["PATH"], seen["LD_LIBRARY_PATH"]) == ("/x", "/y")


def test_a_program_that_edits_its_environment_gets_what_it_says(
    run_process: Any, library: Path, probe: Path
) -> None:
    """And its child has the additions to that."""
    env = bare(LD_PRELOAD=str(library), GPULIMIT_PATH="/x", GPULIMIT_PREPEND_LD_LIBRARY_PATH="/y")
    seen = lines(run_process([probe, "grow", probe], env=env, expect=0).stdout)
    assert seen["PATH"] == "/program/own:/x"
    assert seen["LD_LIBRARY_PATH"] == "/y:/program/libraries"
    seen = lines(run_process([probe, "clear", probe], env=env, expect=0).stdout)
    assert seen == {"LD_PRELOAD": str(library), "GPULIMIT_PATH": "/x", "PATH": "/x"}


def test_a_name_that_stands_twice_is_changed_wherever_it_stands(
    run_process: Any, library: Path, probe: Path, compile_c: Any
) -> None:
    """Programs differ in which of the two they read."""
    source = """
    #include <unistd.h>
    int main(int argc, char **argv)
    {
        char *env[] = {argv[1], "PATH=/a", "GPULIMIT_PATH=/x", "PATH=/b", "odd", "=", NULL};
        (void)argc;
        return execve(argv[2], argv + 2, env);
    }
    """
    start = compile_c(source, name="path-twice")
    seen = run_process([start, f"LD_PRELOAD={library}", probe], env={}, expect=0).stdout.splitlines()
    assert [line for line in seen if line.startswith("PATH=")] == ["PATH=/a:/x", "PATH=/b:/x"]
    assert "odd" in seen and "=" in seen


@needs_program("strace")
@pytest.mark.parametrize(("value", "calls"), [("", 0), ("/bin", 0), ("/new", 1)])
def test_at_most_one_mapping(run_process: Any, library: Path, tmp_path: Path, value: str, calls: int) -> None:
    """None stays where there was nothing to do."""

    def system_calls(**more: str) -> list[str]:
        trace = tmp_path / "trace"
        env = bare(GPULIMIT_PATH=value) if value else bare()
        setting = [f"--env={k}={v}" for k, v in more.items()]
        run_process(["strace", "-o", trace, *setting, "/bin/true"], env=env, expect=0)
        return re.findall(r"^(\w+)\(", trace.read_text(), re.MULTILINE)

    free, loaded = system_calls(), system_calls(LD_PRELOAD=str(library))
    loading = {"openat", "read", "pread64", "fstat", "newfstatat", "mmap", "mprotect", "munmap", "close"}
    assert set(loaded) <= set(free) | loading

    def kept(made: list[str]) -> int:
        return made.count("mmap") - made.count("munmap")

    # The loader maps the library in at most five pieces.
    assert kept(loaded) <= kept(free) + 5 + calls


def test_it_is_not_for_programs_that_run_already(run_process: Any, library: Path, compile_c: Any) -> None:
    source = """
    #include <dlfcn.h>
    #include <stdio.h>
    int main(int argc, char **argv) { (void)argc; puts(dlopen(argv[1], RTLD_NOW) ? "opened" : "refused"); }
    """
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library opens it")
    binary = compile_c(source, "-ldl", name="path-dlopen")
    assert run_process([binary, library], env=bare(), expect=0).stdout == "refused\n"


# ---- setuid ----


@needs_program("setpriv", "unshare")
def test_a_setuid_program_s_environment_stays(
    run_process: Any, library: Path, probe: Path, tmp_path: Path, open_folder: Path
) -> None:
    """Even where /etc/ld.so.preload loads the library into it."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    binary, copy = open_folder / "probe", open_folder / "libgpupath.so"
    shutil.copy(probe, binary)
    shutil.copy(library, copy)
    etc = tmp_path / "etc"
    script = f"""
    set -e
    mount --make-rprivate /
    cp -a /etc {etc} && echo {copy} > {etc}/ld.so.preload && mount --bind {etc} /etc
    run="setpriv --reuid=54321 env GPULIMIT_PATH=/x GPULIMIT_LD_PRELOAD=/evil.so {binary}"
    chmod 755 {binary} && $run
    echo ----
    chmod 4755 {binary} && $run
    """
    done = run_process(["unshare", "-m", "sh", "-c", script], env=bare())
    if "Operation not permitted" in done.stderr or "unshare failed" in done.stderr:
        pytest.skip("SKIPPED: no mount namespaces here")
    assert done.returncode == 0, done.stderr
    plain, setuid = (lines(part) for part in done.stdout.split("----\n"))
    assert (plain["PATH"], plain["LD_PRELOAD"]) == ("/usr/bin:/bin:/x", "/evil.so")
    assert setuid["PATH"] == "/usr/bin:/bin"
    assert "LD_PRELOAD" not in setuid
    assert setuid["GPULIMIT_PATH"] == "/x"


# ---- other C libraries, other processors ----

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(built: Any) -> Build:
    """Build the library with another compiler, or with sanitizers."""

    def with_compiler(compiler: str, **options: str) -> Path:
        if shutil.which(compiler) is None:
            pytest.skip(f"SKIPPED: not installed: {compiler}; .ci/run installs what is needed")
        folder = Path(built.root / "-".join(["path", compiler, *options.values()]).replace(",", "-"))
        settings = [f"{name}={value}" for name, value in options.items()]
        make(ROOT / "csrc" / "path", f"OUT={folder}", f"CC={compiler}", *settings)
        return folder / "libgpupath.so"

    return with_compiler


@pytest.mark.parametrize("compiler", ["cc", "clang-14", f"{CROSS}-gcc"])
def test_it_needs_nothing_but_an_old_libc_and_exports_nothing(build: Build, compiler: str) -> None:
    library = build(compiler)
    symbols = subprocess.run(
        ["readelf", "-W", "--dyn-syms", "-d", library], capture_output=True, text=True, check=True
    ).stdout
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([0-9.]+)", symbols)}
    assert versions and max(versions) <= (2, 17)
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", symbols) == ["libc.so.6"]
    exported = re.findall(r"GLOBAL +DEFAULT +\d+ (\w+)$", symbols, re.MULTILINE)
    assert set(exported) <= {"_init", "_fini", "_end", "_edata", "__bss_start", "__bss_start__", "_bss_end__"}


@pytest.mark.parametrize("target", ["PATH", "LD_PRELOAD", "LD_LIBRARY_PATH"])
def test_a_musl_program(run_process: Any, library: Path, compile_c: Any, build: Build, target: str) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("SKIPPED: not installed: musl-gcc; .ci/run installs what is needed")
    binary = compile_c(PROBE, compiler="musl-gcc", name="path-musl")
    env = {"LD_PRELOAD": str(library), "PATH": "/a", "GPULIMIT_PREPEND_PATH": "/f"}
    env[f"GPULIMIT_{target}"] = "libc.so"
    seen = lines(run_process([binary], env=env, expect=0).stdout)
    expected = {"PATH": "/f:/a", "LD_PRELOAD": str(library)}
    expected[target] = f"{expected[target]}:libc.so" if target in expected else "libc.so"
    assert {name: seen[name] for name in expected} == expected


def test_on_aarch64(run_process: Any, build: Build, compile_c: Any) -> None:
    if platform.machine() == "aarch64":
        pytest.skip("the other tests did this")
    library = build(f"{CROSS}-gcc")
    if shutil.which(QEMU) is None:
        pytest.skip(f"SKIPPED: not installed: {QEMU}; .ci/run installs what is needed")
    binary = compile_c(PROBE, compiler=f"{CROSS}-gcc", name="path-arm")
    env = bare(GPULIMIT_PATH="/x:/bin", TF_PREPEND_LD_LIBRARY_PATH="/y")
    argv = [QEMU, "-L", f"/usr/{CROSS}", "-E", f"LD_PRELOAD={library}", binary]
    seen = lines(run_process(argv, env=env, expect=0).stdout)
    assert (seen["PATH"], seen["LD_LIBRARY_PATH"]) == ("/usr/bin:/bin:/x", "/y")


@pytest.mark.slow
def test_under_the_address_sanitizer(run_process: Any, build: Build, probe: Path) -> None:
    library = build("cc", SANITIZE="address,undefined")
    runtime = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(runtime).exists():
        pytest.skip("SKIPPED: no sanitizer runtime")
    env = bare(
        LD_PRELOAD=f"{runtime}:{library}",
        ASAN_OPTIONS="detect_leaks=0",
        UBSAN_OPTIONS="halt_on_error=1",
        GPULIMIT_PATH="/x:/bin::",
        GPULIMIT_PREPEND_PATH="/bin",
        GPULIMIT_LD_LIBRARY_PATH="/y;/z",
    )
    seen = lines(run_process([probe], env=env, expect=0).stdout)
    assert (seen["PATH"], seen["LD_LIBRARY_PATH"]) == ("/bin:/usr/bin:/x", "/y:/z")
