# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test: the built shim, the simulated driver, and processes that always end.

- `built`: paths of what make built, once per session, under build/ (or $GPULIMIT_BUILD).
- `tenant`: a name that no other test uses; its segment is removed afterwards.
- `sim_env`: environment of a program on a simulated machine of its own, not limited.
- `limited_env`: the same under the shim (LD_PRELOAD); add GPULIMIT_MEMORY and so on.
- `run_process(argv, env=…, timeout=…)`: runs to the end; `start_process`: starts, killed after the test.
- `compile_c(source, …)`: builds a small C program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHM = Path("/dev/shm")
PROCESS_TIMEOUT_S = 30.0
ALONE = ("unit/test_child.py", "top/test_terminal.py", "release", "abi")
"""Tests that run beside no other: signals and terminal as of a shell, builds compared byte by byte."""

for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)  # the caller's terminal; programs under test believe these before their own


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """What the session's tests run against."""

    root: Path
    library: Path
    """libgpulimit.so"""
    path_library: Path
    """libgpupath.so"""
    sim: Path
    """Folder of the simulated libcuda.so.1 and libnvidia-ml.so.1."""
    lib: Path
    """Folder laid out as in an installed package: both libraries and sim/; for GPULIMIT_LIB_DIR."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--alone", choices=("only", "no"), help="run only the tests of ALONE, or all but them; default: all"
    )


def runs_alone(path: Path) -> bool:
    """Return True if a test file must have no other test beside it."""
    return any(path.is_relative_to(ROOT / "tests" / name) for name in ALONE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the other kind of files early, except those named on the command line."""
    wanted = config.getoption("alone")
    if wanted is None or collection_path.suffix != ".py":
        return None
    return True if runs_alone(collection_path) != (wanted == "only") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("alone")
    if wanted is None:
        return
    kept = [item for item in items if runs_alone(item.path) == (wanted == "only")]
    left_out = [item for item in items if runs_alone(item.path) != (wanted == "only")]
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_configure() -> None:
    """Let programs that tests start hear signals, however this one was started: `nohup` and a shell's `&`
    have their children ignore some.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def make(directory: Path, *arguments: str) -> None:
    """Run make quietly; on failure show what it said."""
    done = subprocess.run(
        ["make", "-s", "-j2", "-C", str(directory), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"make -C {directory} {shlex.join(arguments)} failed:\n{done.stdout}", pytrace=False)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock: two test sessions in one checkout must not build at once."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def link(path: Path, target: Path) -> None:
    """Make `path` a symbolic link to `target`, replacing what was there in one step."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(path)


@pytest.fixture(scope="session")
def built() -> Built:
    """Build the shim and the simulated driver, once per session (make decides what is stale)."""
    root = Path(os.environ.get("GPULIMIT_BUILD") or ROOT / "build").resolve()
    shim, sim, lib = root / "shim", root / "sim", root / "lib"
    lib.mkdir(parents=True, exist_ok=True)
    with locked(root / ".lock"):
        make(ROOT / "csrc", f"OUT={shim}")
        make(ROOT / "csrc" / "path", f"OUT={root / 'path'}")
        make(ROOT / "csrc" / "container", f"OUT={root / 'container'}")
        make(ROOT / "csrc" / "sim", f"OUT={sim}")
        link(lib / "libgpulimit.so", shim / "libgpulimit.so")
        link(lib / "libgpupath.so", root / "path" / "libgpupath.so")
        link(lib / "preload-hook", root / "container" / "preload-hook")
        link(lib / "sim", sim)
        link(lib / "hooks.def", ROOT / "csrc" / "hooks.def")
    return Built(
        root=root,
        library=shim / "libgpulimit.so",
        path_library=root / "path" / "libgpupath.so",
        sim=sim,
        lib=lib,
    )


def remove_segments(tenant: str) -> None:
    """Remove the shared memory of a tenant and of those whose names begin with it."""
    for path in SHM.glob(f"gpulimit.*.{tenant}*"):
        path.unlink(missing_ok=True)


@pytest.fixture
def tenant() -> Iterator[str]:
    """Return a tenant's name that nobody else uses; remove its shared memory afterwards."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    yield name
    remove_segments(name)


def clean_environ() -> dict[str, str]:
    """Return this process's environment without anything that would steer the shim or the loader."""
    dropped = ("GPULIMIT_", "LD_", "CUDA_", "NVIDIA_")
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped)}


@pytest.fixture
def sim_env(built: Built, tmp_path: Path, tenant: str) -> dict[str, str]:
    """Environment of a program on a simulated machine that only this test uses."""
    return clean_environ() | {
        "LD_LIBRARY_PATH": str(built.sim),
        "GPULIMIT_SIM_STATE": str(tmp_path / "sim.state"),
        "GPULIMIT_TENANT": tenant,
        "GPULIMIT_LIB_DIR": str(built.lib),
    }


@pytest.fixture
def limited_env(built: Built, sim_env: dict[str, str]) -> dict[str, str]:
    """`sim_env` with the shim preloaded; the test adds its quota."""
    return sim_env | {"LD_PRELOAD": str(built.library)}


class RunProcess(Protocol):
    """Type of the `run_process` fixture."""

    def __call__(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        timeout: float = PROCESS_TIMEOUT_S,
        expect: int | None = None,
        **popen: Any,
    ) -> subprocess.CompletedProcess[str]: ...


class StartProcess(Protocol):
    """Type of the `start_process` fixture."""

    def __call__(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str], **popen: Any
    ) -> subprocess.Popen[str]: ...


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a process that `start_process` started, with its children, and collect it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


@pytest.fixture
def start_process() -> Iterator[StartProcess]:
    """Start programs in process groups of their own; whatever is left is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(argv: Sequence[str | Path], *, env: Mapping[str, str], **popen: Any) -> subprocess.Popen[str]:
        options: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "start_new_session": True,
        }
        process: subprocess.Popen[str] = subprocess.Popen(
            [str(a) for a in argv], env=dict(env), **(options | popen)
        )
        started.append(process)
        return process

    yield start
    for process in started:
        kill_group(process)


@pytest.fixture
def run_process(start_process: StartProcess) -> RunProcess:
    """Run a program to its end; fail, with its output, when it takes longer or `expect` differs."""

    def run(
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        timeout: float = PROCESS_TIMEOUT_S,
        expect: int | None = None,
        **popen: Any,
    ) -> subprocess.CompletedProcess[str]:
        process = start_process(argv, env=env, **popen)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            kill_group_keeping_pipes(process)
            out, err = process.communicate(timeout=10)
            pytest.fail(
                f"{argv} ran longer than {timeout} s\n--- stdout\n{out}\n--- stderr\n{err}", pytrace=False
            )
        if expect is not None and process.returncode != expect:
            pytest.fail(
                f"{argv} ended with {process.returncode}, not {expect}\n--- stdout\n{out}\n--- stderr\n{err}",
                pytrace=False,
            )
        return subprocess.CompletedProcess([str(a) for a in argv], process.returncode, out, err)

    return run


def kill_group_keeping_pipes(process: subprocess.Popen[str]) -> None:
    """Kill the whole group so that its output can still be read to the end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class CompileC(Protocol):
    """Type of the `compile_c` fixture."""

    def __call__(self, source: Path | str, *flags: str, name: str = ..., compiler: str = ...) -> Path: ...


@pytest.fixture(scope="session")
def compile_c(built: Built) -> CompileC:
    """Compile one C file (a path, or the text itself); reuse it while source and flags stay the same."""

    def compile_one(source: Path | str, *flags: str, name: str = "program", compiler: str = "cc") -> Path:
        text = source.read_text() if isinstance(source, Path) else source
        # Headers are not part of the key, so an included csrc header brings its own stamp.
        stamps = "".join(str(p.stat().st_mtime_ns) for p in sorted((ROOT / "csrc").rglob("*.[hd]*")))
        key = hashlib.sha256("\0".join([text, compiler, *flags, stamps]).encode()).hexdigest()[:16]
        folder = built.root / "test-bin"
        folder.mkdir(exist_ok=True)
        binary = folder / f"{name}-{key}"
        if binary.exists():
            return binary
        path = source if isinstance(source, Path) else folder / f"{name}-{key}.c"
        if isinstance(source, str):
            path.write_text(source)
        fresh = folder / f".{binary.name}.{os.getpid()}"
        command = [compiler, "-g", "-O1", "-I", str(ROOT / "csrc"), "-o", str(fresh), str(path), *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            pytest.fail(f"{shlex.join(command)}\n{done.stderr}", pytrace=False)
        fresh.replace(binary)
        return binary

    return compile_one


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter and write to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@pytest.fixture
def gpulimit(run_process: RunProcess, sim_env: dict[str, str]) -> Any:
    """Run the command line on a simulated machine: `gpulimit("run", "--memory", "1GiB", "--", "true")`."""

    def run(*arguments: str, env: Mapping[str, str] | None = None, **options: Any) -> Any:
        return run_process([sys.executable, "-m", "limiter", *arguments], env=env or sim_env, **options)

    return run


def needs_program(*names: str) -> pytest.MarkDecorator:
    """Skip a test, saying why, where a program is not installed."""
    missing = [n for n in names if shutil.which(n) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
