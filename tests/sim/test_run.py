# SPDX-License-Identifier: Apache-2.0
"""`gpulimit run` end to end on the simulated driver."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from limiter import segment, tenants

from .conftest import SOURCES
from .test_symbol_lookup import GLIBC_VERSIONS

LOAD = (sys.executable, "-m", "limiter", "load", "--json")


@pytest.fixture
def own_env(sim_env: dict[str, str]) -> dict[str, str]:
    """Leave the tenant's name to `gpulimit run`."""
    return {k: v for k, v in sim_env.items() if k != "GPULIMIT_TENANT"}


def says_tenant(*command: str) -> tuple[str, ...]:
    """Return a program that first prints its tenant's name, to tell it from other runs on this machine."""
    return ("sh", "-c", 'echo "$GPULIMIT_TENANT"; exec "$@"', "sh", *command)


def test_memory_inside_the_quota_is_given(gpulimit) -> None:
    done = gpulimit("run", "--memory", "4GiB", "--", *LOAD, "--launches", "5", "--memory", "2GiB", expect=0)
    assert json.loads(done.stdout)["memory_bytes"] == 2 << 30


def test_memory_above_the_quota_is_refused(gpulimit) -> None:
    done = gpulimit("run", "--memory", "4GiB", "--", *LOAD, "--launches", "5", "--memory", "5GiB", expect=1)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr


def test_the_program_is_told_its_quota(gpulimit) -> None:
    code = "from limiter.cuda import Driver; print(Driver().device(0).total_bytes)"
    done = gpulimit("run", "--memory", "4GiB", "--", sys.executable, "-c", code, expect=0)
    assert int(done.stdout) == 4 << 30


def test_runs_of_one_tenant_share_its_quota(gpulimit, start_process, sim_env, tenant: str) -> None:
    run = [sys.executable, "-m", "limiter", "run", "--tenant", tenant, "--memory", "4GiB", "--"]
    holder = start_process([*run, *LOAD, "--idle", "--memory", "2GiB", "--seconds", "40"], env=sim_env)
    wait_for(lambda: registered(tenant))
    done = gpulimit(*run[3:], *LOAD, "--launches", "5", "--memory", "2GiB", expect=1)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr
    holder.send_signal(signal.SIGTERM)
    holder.communicate(timeout=20)
    gpulimit(*run[3:], *LOAD, "--launches", "5", "--memory", "2GiB", expect=0)


def registered(tenant: str) -> bool:
    try:
        usage = segment.read(tenant)
    except FileNotFoundError:
        return False
    return any(a.used_bytes >= 2 << 30 for p in usage.processes for a in p.accounts)


def wait_for(condition, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_without_tenant_leaves_nothing_behind(gpulimit, own_env) -> None:
    program = says_tenant(*LOAD, "--launches", "1")
    done = gpulimit("run", "--memory", "4GiB", "--", *program, env=own_env, expect=0)
    tenant = done.stdout.splitlines()[0]
    assert tenants.MADE_UP.fullmatch(tenant)
    assert not segment.path_of(tenant).exists()


def test_a_program_that_outlives_the_run_keeps_its_books(gpulimit, own_env, tmp_path: Path) -> None:
    """A daemonised child is still under quota, so the tenant's segment must stay; the next run sweeps it."""
    ready = tmp_path / "ready"
    load = f"{' '.join(LOAD)} --idle --memory 2GiB --seconds 4"
    script = f"setsid {load} >{ready} 2>&1 </dev/null & sleep 1.5"
    program = says_tenant("sh", "-c", script)
    done = gpulimit("run", "--memory", "4GiB", "--", *program, env=own_env, expect=0)
    kept = segment.path_of(done.stdout.splitlines()[0])
    assert kept.exists()
    wait_for(lambda: ready.read_text() != "")

    def swept() -> bool:
        gpulimit("run", "--memory", "4GiB", "--", "true", env=own_env, expect=0)
        return not kept.exists()

    wait_for(swept)


def test_a_report_says_what_was_used(gpulimit, own_env) -> None:
    arguments = ("--seconds", "1", "--kernel", "1ms", "--memory", "2GiB")
    done = gpulimit("run", "--memory", "4GiB", "--report", "--", *LOAD, *arguments, env=own_env, expect=0)
    assert "of 4 GiB, 0 refused" in done.stderr
    assert "kernel" in done.stderr
    json.loads(done.stdout)  # the report must not mix with the program's output


def test_a_report_on_a_program_without_cuda_says_so(gpulimit, own_env) -> None:
    done = gpulimit("run", "--memory", "4GiB", "--report", "--", "true", env=own_env, expect=0)
    assert "no CUDA process registered" in done.stderr


def test_a_bad_quota_is_refused_before_anything_starts(gpulimit, own_env, tmp_path: Path) -> None:
    done = gpulimit("run", "--memory", "4GX", "--", "touch", tmp_path / "ran", env=own_env, expect=2)
    assert done.stderr.startswith("gpulimit: --memory: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("program", "status"), [("no-such-program", 127), (os.devnull, 126)])
def test_a_program_that_cannot_start_gives_the_shell_s_status(gpulimit, program: str, status: int) -> None:
    done = gpulimit("run", "--memory", "4GiB", "--", program, expect=status)
    assert done.stderr.startswith(f"gpulimit: cannot start '{program}'")


def test_gpus_are_chosen_by_index(gpulimit, sim_env) -> None:
    code = "from limiter.cuda import Driver; d = Driver(); print(d.device_count(), d.device(0).name)"
    env = sim_env | {"GPULIMIT_SIM_PROFILE": "mixed"}
    done = gpulimit(
        "run", "--gpu", "2", "--memory", "4GiB", "--", sys.executable, "-c", code, env=env, expect=0
    )
    assert done.stdout.startswith("1 NVIDIA A100")


def test_the_simulated_driver_is_found_by_an_option(gpulimit, sim_env) -> None:
    env = {k: v for k, v in sim_env.items() if k != "LD_LIBRARY_PATH"}
    done = gpulimit("run", "--sim", "--memory", "4GiB", "--", *LOAD, "--launches", "1", env=env, expect=0)
    assert json.loads(done.stdout)["simulated"] is True


def test_a_program_killed_by_a_signal_gives_128_and_its_number(gpulimit, own_env) -> None:
    gpulimit("run", "--memory", "4GiB", "--", "sh", "-c", "kill -9 $$", env=own_env, expect=137)


@pytest.mark.parametrize("flags", [(), ("-DHOOK_DLSYM",)], ids=["plain", "hooks dlsym too"])
def test_another_library_that_takes_calls_over_is_asked_and_the_quota_holds(
    program: Any, compile_c: Any, gpulimit: Any, own_env: dict[str, str], flags: tuple[str, ...]
) -> None:
    """As profilers and overlays are preloaded by their own launchers, around `gpulimit run` or inside it."""
    version = GLIBC_VERSIONS.get(platform.machine(), "GLIBC_2.17")
    source = SOURCES / "ways" / "interposer.c"
    shared = ("-shared", "-fPIC", "-D_GNU_SOURCE", f'-DREAL_DLSYM_VERSION="{version}"', "-ldl")
    other = compile_c(source, *shared, *flags, name="interposer.so")
    env = own_env | {"GPULIMIT_SIM_PROFILE": "small", "INTERPOSER_SAYS": "1", "LD_PRELOAD": str(other)}
    run = ("run", "--memory", "64MiB", "--")
    ended = gpulimit(*run, str(program("ways/reach", "-DLINKED")), "linked", env=env, expect=0)
    assert (ended.stdout, ended.stderr) == ("refused\n", "interposer: asked 2 times\n")
    ended = gpulimit(*run, str(program("ways/reach", link=False)), "handle", env=env, expect=0)
    assert ended.stdout == "refused\n"
