# SPDX-License-Identifier: Apache-2.0
"""A daemon of the test's own on the simulated driver, and programs that attack it.

- `daemon(…)`: as in tests/daemon; its log must hold no traceback and no warning of Python when the test ends.
- `attack(text, uid=…, group=…, unshare=…)`: runs Python text as another user, in a control group, in
  namespaces of its own. What wire.py defines is at hand there; what it says with `say(…)` the test hears.
- `control_group(path)`: makes a control group, with those above it, and removes them after the test.
- `setuid`: a program of root's with that bit.
- `victim_uid`, `attacker_uid`: users of the test's own, without name and without rights.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from limiter._native import ffi, lib

from tests.conftest import CompileC, StartProcess, clean_environ
from tests.daemon.conftest import DEADLINE_S
from tests.daemon.conftest import client as client  # fixtures here too
from tests.daemon.conftest import daemon as daemon
from tests.daemon.conftest import daemon_env as daemon_env
from tests.daemon.conftest import other_tenant as other_tenant
from tests.daemon.conftest import run_dir as run_dir

WIRE = Path(__file__).with_name("wire.py")
NOBODY = 65534
SYSTEM_PYTHON = Path("/usr/bin/python3")
PYTHON = str(SYSTEM_PYTHON if SYSTEM_PYTHON.exists() else Path(sys.executable).resolve())
"""Not the virtual environment's: other users cannot read the checkout, nor a Python in root's home."""
FIRST_UID = 200_000
uids = itertools.count(FIRST_UID + os.getpid() % 10_000 * 64)
Hostile = Callable[..., "Attack"]
Groups = Callable[..., Path]


@dataclass
class Attack:
    """A running program."""

    process: subprocess.Popen[str]

    def heard(self) -> dict[str, Any]:
        """Return what it says next; fail, with what it wrote, when it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.process.stderr.read() if self.process.stderr else ""
            pytest.fail(f"the program has ended with {self.process.wait(DEADLINE_S)}: {said}")
        return dict(json.loads(line))

    def tell(self, fact: Any) -> None:
        """Let its `hear()` return."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fact) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait for its end, which must be a good one."""
        _, said = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, said


def layout() -> dict[str, int]:
    """Return sizes and offsets in a usage segment, for programs that scribble into it."""
    sizes = {name: ffi.sizeof(f"struct {name}") for name in ("gl_usage", "gl_policy", "gl_slot", "gl_device")}
    fields = {
        f"{name}.{field}": ffi.offsetof(f"struct {name}", field)
        for name in ("gl_usage", "gl_slot", "gl_device", "gl_account")
        for field, _ in ffi.typeof(f"struct {name}").fields
    }
    return sizes | fields


@pytest.fixture
def attacker_uid() -> int:
    return next(uids)


@pytest.fixture
def victim_uid() -> int:
    return next(uids)


@pytest.fixture
def attack(run_dir: Path, start_process: StartProcess) -> Hostile:
    """Start a program: `text` is Python, after wire.py.

    `uid`: its user, without further groups; None: the test's. `group`: the control group that it starts in.
    `unshare`: options of unshare(1), as ("--mount", "--pid", "--fork"). `settings` are added to SETTINGS.
    """

    def start(
        text: str,
        *,
        uid: int | None = NOBODY,
        group: Path | None = None,
        unshare: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Attack:
        if uid is not None and os.geteuid() != 0:
            pytest.skip("needs root, to be another user")
        program = run_dir / f"attack-{len(list(run_dir.glob('attack-*')))}.py"
        program.write_text(f"{WIRE.read_text()}\n\n{prologue(uid, group)}{text}")
        told = {"socket": str(run_dir / "daemon.sock"), "version": lib.GL_LAYOUT_VERSION, "layout": layout()}
        argv = [PYTHON, "-I", "-B", str(program)]
        if unshare:
            if shutil.which("unshare") is None:
                pytest.skip("unshare is not installed")
            argv = ["unshare", *unshare, *argv]
        environment = clean_environ() | {"ATTACK": json.dumps(told | dict(settings or {}))} | dict(env or {})
        return Attack(start_process(argv, env=environment, stdin=subprocess.PIPE, cwd="/"))

    return start


def prologue(uid: int | None, group: Path | None) -> str:
    """Return what a program does first: it enters its control group and imports while it may."""
    lines = "import fcntl, mmap, random, struct, threading, time\n"
    lines += f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n" if group is not None else ""
    return lines + (f"become({uid})\n" if uid is not None else "")


def hierarchy(*, version: int = 2) -> Path:
    """Return where control groups are: of version 2, or version 1's hierarchy of systemd. Skips without."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        place = Path(fields.split()[4])
        wanted = "cgroup2 " if version == 2 else "cgroup "
        if (
            kind.startswith(wanted)
            and (version == 2 or place.name == "systemd")
            and os.access(place, os.W_OK)
        ):
            return place
    pytest.skip(f"no control groups of version {version} that can be made here")


@pytest.fixture
def control_group() -> Iterator[Groups]:
    """Make control groups, removed after the test once their processes have ended."""
    made: list[Path] = []

    def make(path: str, *, owner: int | None = None, version: int = 2) -> Path:
        """Make a group and those above it; `owner`: delegate the last one to a user, as systemd does."""
        place = hierarchy(version=version)
        for part in Path(path.lstrip("/")).parts:
            place /= part
            if place.is_dir():
                continue
            try:
                place.mkdir()
            except OSError as error:
                pytest.skip(f"cannot make control groups here: {error}")
            made.append(place)
        for file in (place, place / "cgroup.procs", place / "cgroup.subtree_control", place / "tasks"):
            if owner is not None and file.exists():
                os.chown(file, owner, owner)
        return place

    yield make
    for top in [place for place in made if place.parent not in made]:
        remove_groups(top)


def remove_groups(top: Path) -> None:
    """Remove a control group with all below it; processes that are left go up into the root."""
    with contextlib.suppress(OSError):
        for place, _, _ in os.walk(top, topdown=False):
            for pid in (Path(place) / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), 9)
                    os.waitid(os.P_PIDFD, os.pidfd_open(int(pid)), os.WEXITED | os.WNOWAIT)
            Path(place).rmdir()


SETUID = """
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "as root") && setresuid(0, 0, 0))
		return 1;
	for (;;)
		pause();
}
"""


@pytest.fixture
def setuid(compile_c: CompileC, run_dir: Path) -> Path:
    """A program of root's with the setuid bit, which becomes root in every respect if it is told so."""
    program = Path(shutil.copy(compile_c(SETUID, name="setuid"), run_dir / "setuid"))
    program.chmod(0o4755)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        pytest.skip(f"{run_dir} is mounted nosuid")
    return program
