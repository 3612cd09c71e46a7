# SPDX-License-Identifier: Apache-2.0
"""The simulated driver: one small C program per behaviour, each on a machine of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
PROFILES = HERE.parent.parent / "csrc" / "sim" / "profiles"

PROGRAMS: dict[str, dict[str, str]] = {
    "capture_graph": {},
    "capture_rules": {},
    "concurrency": {"GPULIMIT_SIM_SET": "concurrency=4"},
    "contexts": {},
    "events": {},
    "faults": {
        "GPULIMIT_SIM_FAULTS": "cuMemAlloc_v2:fail=2:after=1:count=2,"
        "cuMemGetInfo_v2:delay_ms=60,cuMemFree_v2:kill=before"
    },
    "fork_child": {},
    "host_function": {},
    "killed": {},
    "memory_exact": {"GPULIMIT_SIM_PROFILE": "small"},
    "memory_granules": {},
    "nvml_protocol": {},
    "proc_address": {},
    "queue_depth": {},
    "shared_memory": {},
    "slicing": {},
    "stream_contexts": {},
    "utilisation": {},
    "waiting": {"GPULIMIT_SIM_GPUS": "2"},
    "xid_events": {},
}


def program(compile_c: Any, built: Any, name: str) -> Path:
    """Compile one of the programs against the simulated libraries."""
    binary: Path = compile_c(
        HERE / f"{name}.c",
        *("-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-variable", "-pthread"),
        *("-L", str(built.sim), "-Wl,--no-as-needed", "-lcuda", "-lnvidia-ml", "-ldl"),
        name=f"sim-driver-{name}",
    )
    return binary


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_program_passes_on_the_simulated_driver(
    name: str, compile_c: Any, built: Any, sim_env: dict[str, str], run_process: Any
) -> None:
    ended = run_process([program(compile_c, built, name)], env=sim_env | PROGRAMS[name], timeout=60)
    if ended.returncode == 77:
        pytest.skip(ended.stdout.strip() or "cannot run here")
    assert (ended.returncode, ended.stdout) == (0, "")


def test_every_program_is_listed() -> None:
    assert {p.stem for p in HERE.glob("*.c")} == set(PROGRAMS) | {"visible_devices"}


# Of the mixed profile: by speed H100, A100, L4; by bus L4, H100, A100.
@pytest.mark.parametrize(
    ("visible", "order", "seen"),
    [
        (None, None, "0 H100:1f0b A100-SXM4-80GB:2c0c L4:1f0a"),
        (None, "PCI_BUS_ID", "0 L4:1f0a H100:1f0b A100-SXM4-80GB:2c0c"),
        ("1", None, "0 A100-SXM4-80GB:2c0c"),
        ("2,0", None, "0 L4:1f0a H100:1f0b"),
        ("2,0", "PCI_BUS_ID", "0 A100-SXM4-80GB:2c0c L4:1f0a"),
        ("", None, "100"),
        ("-1", None, "100"),
        ("0,-1,1", None, "0 H100:1f0b"),
        ("0,7,1", None, "0 H100:1f0b"),
        ("1,1", None, "100"),
        ("GPU-2c", None, "0 A100-SXM4-80GB:2c0c"),
        ("GPU-1f", None, "100"),
        ("GPU-1F0A", None, "0 L4:1f0a"),
        ("GPU-1f0b22bb-0002-4a00-8000-000000000002,GPU-2c0c", None, "0 H100:1f0b A100-SXM4-80GB:2c0c"),
        ("GPU-dead,0", None, "100"),
        ("nonsense", None, "100"),
    ],
)
def test_visible_devices_follow_the_drivers_rules(
    visible: str | None,
    order: str | None,
    seen: str,
    compile_c: Any,
    built: Any,
    sim_env: dict[str, str],
    run_process: Any,
) -> None:
    env = sim_env | {"GPULIMIT_SIM_PROFILE": "mixed"}
    env |= {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {}
    env |= {"CUDA_DEVICE_ORDER": order} if order else {}
    ended = run_process([program(compile_c, built, "visible_devices")], env=env, expect=0)
    assert ended.stdout.strip() == seen


@pytest.mark.parametrize("profile", sorted(p.stem for p in PROFILES.glob("*.profile")))
def test_every_profile_makes_a_machine_that_says_it_is_simulated(
    profile: str, compile_c: Any, built: Any, sim_env: dict[str, str], run_process: Any
) -> None:
    binary = program(compile_c, built, "visible_devices")
    ended = run_process([binary], env=sim_env | {"GPULIMIT_SIM_PROFILE": profile}, expect=0)
    assert re.fullmatch(r"0( \S+:[0-9a-f]{4})+", ended.stdout.strip())
    assert ended.stderr == ""
    names = re.findall(r"^name = (.*)$", (PROFILES / f"{profile}.profile").read_text(), re.MULTILINE)
    assert names and all(n.endswith("(simulated)") for n in names)


def test_number_of_gpus_can_be_set(
    compile_c: Any, built: Any, sim_env: dict[str, str], run_process: Any
) -> None:
    binary = program(compile_c, built, "visible_devices")
    ended = run_process([binary], env=sim_env | {"GPULIMIT_SIM_GPUS": "3"}, expect=0)
    uuids = [word.split(":")[1] for word in ended.stdout.split()[1:]]
    assert len(uuids) == len(set(uuids)) == 3


def test_an_unknown_key_is_refused_with_file_and_line(
    compile_c: Any,
    built: Any,
    sim_env: dict[str, str],
    run_process: Any,
    tmp_path: Path,
) -> None:
    profile = tmp_path / "bad.profile"
    profile.write_text("cuda_version = 13000\n[gpu]\nmemroy = 4 GiB\n")
    binary = program(compile_c, built, "visible_devices")
    ended = run_process([binary], env=sim_env | {"GPULIMIT_SIM_PROFILE": str(profile)}, expect=0)
    assert ended.stdout.split() == ["999"]
    assert f"{profile}:3: unknown key or bad value" in ended.stderr
