# SPDX-License-Identifier: Apache-2.0
"""Without a daemon, tenants' names are per user: what another user has under a name is no hindrance."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from limiter import segment
from tests.conftest import SHM
from tests.daemon.conftest import needs_root

pytestmark = needs_root()
OTHER = 300_001
ALLOCATE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "abi.h"
/* Usage: allocate UID MIB: as that user, prints what the allocation gives, and stays until its input ends. */
int main(int argc, char **argv)
{
	CUcontext context;
	CUdeviceptr p;
	int uid = atoi(argv[1]);
	if (argc != 3 || (uid && (setgid(uid) || setuid(uid))))
		return 1;
	CUresult r = cuInit(0);
	r = r ? r : cuCtxCreate_v2(&context, 0, 0);
	r = r ? r : cuMemAlloc_v2(&p, (size_t)atoi(argv[2]) << 20);
	printf("%d\n", (int)r);
	fflush(stdout);
	return getchar() != EOF;
}
"""


@pytest.fixture
def allocate(
    compile_c: Any, built: Any, start_process: Any, limited_env: dict[str, str], open_folder: Path
) -> Any:
    """Start a program of a user; return the process and what its allocation gave."""
    driver = ("-D_GNU_SOURCE", "-Wl,--no-as-needed", "-L", str(built.sim), "-lcuda")
    binary = compile_c(ALLOCATE, *driver, name="allocate-as")
    env = limited_env | {"GPULIMIT_MEMORY": "64MiB", "GPULIMIT_SIM_PROFILE": "small"}

    def start(uid: int, mib: int) -> tuple[Any, int]:
        state = {"GPULIMIT_SIM_STATE": str(open_folder / f"sim-{uid}")}
        process = start_process([binary, str(uid), str(mib)], env=env | state, stdin=subprocess.PIPE)
        return process, int(process.stdout.readline() or -1)

    return start


def test_two_users_have_tenants_of_one_name(allocate, tenant) -> None:
    first = allocate(0, 40)
    second = allocate(OTHER, 40)
    assert (first[1], second[1]) == (0, 0)
    assert allocate(OTHER, 40)[1] == allocate(0, 40)[1] == 2  # each within its own quota
    assert {name for name in segment.tenants() if name.startswith(tenant)} == {tenant, f"{tenant}@{OTHER}"}
    assert segment.read_listed(f"{tenant}@{OTHER}").owner_uid == OTHER
    assert segment.read(tenant).owner_uid == os.geteuid()


def test_a_name_stays_while_processes_live_under_it(allocate, tenant) -> None:
    first = allocate(0, 40)
    second = allocate(OTHER, 40)
    first[0].kill()
    first[0].wait()
    (SHM / f"gpulimit.u.{tenant}").unlink()
    assert second[1] == 0
    assert allocate(OTHER, 40)[1] == 2


@pytest.mark.parametrize("kind", ["folder", "link", "fifo", "file"])
def test_what_has_the_name_and_is_no_segment_of_ours_is_no_hindrance(allocate, tenant, kind) -> None:
    path = SHM / f"gpulimit.u.{tenant}"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.write_bytes(b"")
        path.chmod(0o600)
        os.chown(path, 4711, 4711)
    try:
        assert allocate(OTHER, 40)[1] == 0
        assert allocate(OTHER, 40)[1] == 2
    finally:
        path.rmdir() if kind == "folder" else path.unlink()
