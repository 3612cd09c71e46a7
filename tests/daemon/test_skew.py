# SPDX-License-Identifier: Apache-2.0
"""Library and daemon of different versions: each refuses the other with one clear line, and no limit is lost.

"Next" is this product with the next version of the shared-memory layout, built from a copy of the sources.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from limiter._native import lib

from ..conftest import ROOT, SHM, Built, locked, make
from .conftest import eventually

NOW, NEXT = int(lib.GL_LAYOUT_VERSION), int(lib.GL_LAYOUT_VERSION) + 1
NOT_PERMITTED = "800"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOLD = r"""
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include "abi.h"
#define MIB (1ull << 20)
/* Takes 32 MiB, then tells at each SIGUSR1 what another 64 MiB give.  Usage: hold */
static volatile sig_atomic_t asked;
static void on_ask(int n) { (void)n; asked++; }
int main(void)
{
	CUcontext context;
	CUdeviceptr p;
	int told = 0;
	signal(SIGUSR1, on_ask);
	CUresult r = cuInit(0);
	r = r ? r : cuCtxCreate_v2(&context, 0, 0);
	r = r ? r : cuMemAlloc_v2(&p, 32 * MIB);
	printf("began %d\n", (int)r);
	fflush(stdout);
	while (!r) {
		usleep(10000);
		for (; told < asked; told++) {
			CUresult more = cuMemAlloc_v2(&p, 64 * MIB);
			printf("more %d\n", (int)more);
			fflush(stdout);
			if (!more)
				cuMemFree_v2(p);
		}
	}
	return 0;
}
"""


@pytest.fixture(scope="session")
def following(built: Built) -> Path:
    """A tree with the next version: limiter/ and hypervisor/ to run, shim/libgpulimit.so."""
    sources = [ROOT / "limiter/_native_build.py", *sorted((ROOT / "csrc").rglob("*.[chd]*"))]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    tree = built.root / "next" / key
    with locked(built.root / "next.lock"):
        for name in ("csrc", "limiter", "hypervisor"):
            ignored = shutil.ignore_patterns("__pycache__", "_lib", "_native*.so", "_native*.c")
            shutil.copytree(ROOT / name, tree / name, ignore=ignored, dirs_exist_ok=True)
        layout = tree / "csrc" / "layout.h"
        old = f"#define GL_LAYOUT_VERSION {NOW}"
        assert old in layout.read_text()
        layout.write_text(layout.read_text().replace(old, f"#define GL_LAYOUT_VERSION {NEXT}"))
        stat = (ROOT / "csrc" / "layout.h").stat()
        os.utime(layout, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        make(tree / "csrc", f"OUT={tree / 'shim'}", "CFLAGS=-O0")
        if not list(tree.glob("limiter/_native*.so")):
            argv = [sys.executable, tree / "limiter" / "_native_build.py", tree]
            subprocess.run(
                argv, env=dict(os.environ, CFLAGS="-O0"), check=True, capture_output=True, timeout=200
            )
    return tree


@pytest.fixture
def next_env(following: Path) -> dict[str, str]:
    """What makes `python -m hypervisor` the next version."""
    return {"PYTHONPATH": str(following), "PYTHONSAFEPATH": "1"}


@pytest.fixture
def hold(compile_c: Any, built: Built) -> Path:
    driver = ("-Wl,--no-as-needed", "-L", str(built.sim), "-lcuda")
    path: Path = compile_c(HOLD, *driver, name="hold")
    return path


@pytest.fixture
def env(limited_env: dict[str, str]) -> dict[str, str]:
    return limited_env | {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "64MiB"}


def line(process: Any) -> str:
    text: str = process.stdout.readline()
    return text.strip()


def more(process: Any) -> str:
    process.send_signal(signal.SIGUSR1)
    return line(process)


def refused(run_process: Any, hold: Path, env: dict[str, str]) -> str:
    """Run a program that must not get a GPU; return the one line that says why."""
    done = run_process([hold], env=env)
    assert done.stdout.split() == ["began", NOT_PERMITTED]
    (said,) = done.stderr.splitlines()
    return str(said)


def test_a_daemon_refuses_the_next_library(
    daemon: Any, following: Path, run_process: Any, hold: Path, env: dict[str, str]
) -> None:
    node = daemon(env={"GPULIMIT_SIM_PROFILE": "small"})
    library = str(following / "shim" / "libgpulimit.so")
    said = refused(run_process, hold, env | {"LD_PRELOAD": library, "GPULIMIT_SOCKET": node.socket})
    assert f"speaks version {NOW}, not {NEXT}" in said


def test_the_next_daemon_refuses_this_library(
    daemon: Any, next_env: dict[str, str], run_process: Any, hold: Path, env: dict[str, str]
) -> None:
    node = daemon(env={"GPULIMIT_SIM_PROFILE": "small"} | next_env)
    said = refused(run_process, hold, env | {"GPULIMIT_SOCKET": node.socket})
    assert f"speaks version {NEXT}, not {NOW}" in said


def test_without_a_daemon_two_versions_do_not_share_a_tenant(
    following: Path, start_process: Any, run_process: Any, hold: Path, env: dict[str, str]
) -> None:
    """The second is refused; the first goes on."""
    first = start_process([hold], env=env)
    assert line(first) == "began 0"
    said = refused(run_process, hold, env | {"LD_PRELOAD": str(following / "shim" / "libgpulimit.so")})
    assert "version" in said
    assert more(first) == "more 2"


def test_a_tenant_outlives_an_upgrade_to_the_next_daemon_and_back(
    daemon: Any,
    next_env: dict[str, str],
    start_process: Any,
    hold: Path,
    env: dict[str, str],
    tenant: str,
) -> None:
    """Its limit holds all the while. The next daemon takes no process of it; the one of before takes it back.

    The next daemon sets its books aside, and the one of before finds them there.
    """
    small = {"GPULIMIT_SIM_PROFILE": "small"}
    node = daemon(env=small)
    process = start_process([hold], env=env | {"GPULIMIT_SOCKET": node.socket})
    assert line(process) == "began 0"
    assert eventually(lambda: node.tenant(tenant))["gpus"][0]["memory_used_bytes"] == 32 << 20
    node.stop()
    assert more(process) == "more 2"

    upgraded = daemon(env=small | next_env)
    time.sleep(2)
    assert more(process) == "more 2"
    assert not [row for row in upgraded.state()["tenants"] if row.get("workers")]
    upgraded.stop()
    assert more(process) == "more 2"

    again = daemon(env=small)
    shown = eventually(lambda: (row := again.tenant(tenant)) and row.get("workers") and row)
    assert shown["gpus"][0]["memory_used_bytes"] == 32 << 20
    assert more(process) == "more 2"
    process.kill()


def test_what_somebody_put_where_such_books_would_be_is_not_taken(
    daemon: Any, start_process: Any, hold: Path, env: dict[str, str], tenant: str, tmp_path: Path
) -> None:
    """A link, a folder, a file of no layout: set aside like anything else in the way."""
    (tmp_path / "secret").write_text("not to be touched")
    for prefix in ("u", "p"):
        (SHM / f"gpulimit.aside.v{NOW}.{prefix}.{tenant}").symlink_to(tmp_path / "secret")
    node = daemon(env={"GPULIMIT_SIM_PROFILE": "small"})
    process = start_process([hold], env=env | {"GPULIMIT_SOCKET": node.socket})
    assert line(process) == "began 0"
    assert more(process) == "more 2"
    assert (tmp_path / "secret").read_text() == "not to be touched"
    process.kill()
