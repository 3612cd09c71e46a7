# SPDX-License-Identifier: Apache-2.0
"""`gpulimit doctor` on the simulated driver: healthy as it is, and able to tell what is broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def checks(done) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_a_simulated_machine_is_healthy(gpulimit) -> None:
    done = gpulimit("doctor", "--sim", "--json", expect=0)
    found = checks(done)
    assert {check["level"] for check in found.values()} <= {"ok", "warn"}
    assert found["driver"]["text"].startswith("SIMULATED")
    assert found["hooks"]["level"] == found["quota"]["level"] == "ok"


def test_the_answer_is_readable(gpulimit) -> None:
    lines = gpulimit("doctor", "--sim", expect=0).stdout.splitlines()
    assert any(line.startswith("ok    quota: ") for line in lines)
    assert not any("\033" in line for line in lines)


def test_without_a_driver_it_says_what_to_do(gpulimit, sim_env, tmp_path: Path) -> None:
    """An unreadable libcuda.so.1 stands for a machine that has none, whatever this one has."""
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "libcuda.so.1").write_text("not a library")
    env = sim_env | {"LD_LIBRARY_PATH": str(tmp_path / "none")}
    found = checks(gpulimit("doctor", "--json", env=env, expect=1))
    assert found["driver"]["level"] == "fail"
    assert "--sim" in found["driver"]["advice"]


def test_a_library_that_takes_nothing_over_is_found_out(
    gpulimit, sim_env, built, compile_c, tmp_path: Path
) -> None:
    empty = compile_c("int gpulimit_empty;", "-shared", "-fPIC", name="libempty.so")
    shutil.copy(empty, tmp_path / "libgpulimit.so")
    (tmp_path / "sim").symlink_to(built.sim)
    shutil.copy(built.lib / "hooks.def", tmp_path)
    env = sim_env | {"GPULIMIT_LIB_DIR": str(tmp_path)}
    found = checks(gpulimit("doctor", "--sim", "--json", env=env, expect=1))
    assert found["hooks"]["level"] == found["quota"]["level"] == "fail"
