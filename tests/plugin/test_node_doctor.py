# SPDX-License-Identifier: Apache-2.0
"""`gpulimit doctor --node` beside a daemon that serves a kubelet, and where something is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from limiter.doctor import node as checks
from tests.plugin.kubelet import Kubelet


@pytest.fixture
def doctor(daemon_env, run_dir: Path, run_process) -> Any:
    def run(**environ: str) -> dict[str, dict[str, str]]:
        env = daemon_env | {
            "GPULIMITD_SOCKET": str(run_dir / "daemon.sock"),
            "GPULIMITD_KUBELET_DIR": str(run_dir / "kubelet"),
            "GPULIMITD_LIBRARY_DIR": str(run_dir / "lib"),
            "GPULIMITD_DEVICE_PLUGIN": "on",
            **environ,
        }
        argv = [sys.executable, "-P", "-m", "limiter", "doctor", "--node", "--sim", "--json"]
        answer = json.loads(run_process(argv, env=env).stdout)
        return {check["name"]: check for check in answer["checks"]}

    return run


def test_a_node_that_serves(node, kubelet: Kubelet, doctor) -> None:
    node()
    found = doctor()
    assert {name: c for name, c in found.items() if c["level"] == "fail" and name != "rights"} == {}
    assert "is mapped" in found["library for containers"]["text"]
    assert found["device plugin"]["level"] == found["kubelet"]["level"] == found["NVML"]["level"] == "ok"


def test_what_is_missing_is_named(doctor, run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "kubelet/device-plugins").mkdir(parents=True)
    file = tmp_path / "file"
    file.write_text("")
    found = doctor(GPULIMITD_LIBRARY_DIR=str(file / "lib"), GPULIMITD_SHM_READ_ONLY=str(tmp_path))
    failed = {name for name, check in found.items() if check["level"] == "fail"} - {"rights"}
    assert failed == {"/dev/shm, read-only", "library for containers", "daemon", "kubelet", "device plugin"}
    assert str(file) in found["library for containers"]["text"]
    assert all(check["advice"] for check in found.values() if check["level"] != "ok")


def test_the_folder_for_cdi_is_looked_at_where_it_is_needed(doctor, tmp_path: Path) -> None:
    assert "CDI" not in doctor()
    assert doctor(GPULIMITD_MERGE_PRELOAD="on", GPULIMITD_CDI_DIR=str(tmp_path))["CDI"]["level"] == "ok"
    found = doctor(GPULIMITD_HAND_OVER="cdi", GPULIMITD_CDI_DIR=str(tmp_path / "none"))["CDI"]
    assert found["level"] == "fail" and "none" in found["text"]


def test_single_checks() -> None:
    assert checks.kernel("4.18.0-553.el8").level == "fail"
    assert checks.kernel("5.10.0").level == checks.kernel("6.18.5+deb13").level == "ok"
    assert checks.rights("CapEff:\t000000000000000b\n").level == "ok"
    assert "FOWNER" in checks.rights("CapEff:\t0000000000000003\n").text
    assert checks.pid_namespace(1).level == "warn"


def test_a_part_of_the_control_groups_is_not_the_nodes(tmp_path: Path) -> None:
    own = f"41 31 0:38 / {tmp_path} rw - cgroup2 cgroup2 rw"
    part = checks.control_groups(own)
    assert part.level == "fail" and "/sys/fs/cgroup" in part.advice
    assert checks.control_groups(own.replace("0:38 / ", "0:38 /../.. ")).level == "ok"
    text = Path("/proc/self/mountinfo").read_text()
    if "cgroup" not in text:
        pytest.skip("no control groups are mounted here")
    assert checks.control_groups(text).level == "ok"
