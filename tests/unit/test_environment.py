# SPDX-License-Identifier: Apache-2.0
"""What `gpulimit run` puts into a program's environment."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from limiter import environment, tenants
from limiter.cli import build_parser, load_command
from limiter.commands import run as run_command
from limiter.errors import QuotaError, UsageError


@pytest.fixture(autouse=True)
def library_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "sim").mkdir()
    for name in ("libgpulimit.so", "sim/libcuda.so.1"):
        (tmp_path / name).touch()
    monkeypatch.setenv("GPULIMIT_LIB_DIR", str(tmp_path))
    return tmp_path


def options(*arguments: str) -> argparse.Namespace:
    return build_parser("run", load_command("run")).parse_args(list(arguments))


@pytest.mark.parametrize(
    "before", ["/lib/other.so", "/lib/other.so:/lib/more.so", "/lib/other.so /lib/more.so"]
)
def test_the_library_comes_last_and_others_stay(library_dir: Path, before: str) -> None:
    variables = {"LD_PRELOAD": before}
    environment.preload(variables)
    assert variables["LD_PRELOAD"].split(":") == [
        *before.replace(" ", ":").split(":"),
        f"{library_dir}/libgpulimit.so",
    ]


def test_preloading_twice_changes_nothing(library_dir: Path) -> None:
    variables: dict[str, str] = {}
    environment.preload(variables)
    environment.preload(variables)
    assert variables == {"LD_PRELOAD": f"{library_dir}/libgpulimit.so"}


def test_gpus_are_chosen_in_the_order_of_nvidia_smi() -> None:
    variables: dict[str, str] = {}
    environment.set_gpus(variables, ["1", "GPU-34ab"])
    assert variables == {"CUDA_VISIBLE_DEVICES": "1,GPU-34ab", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_without_gpu_option_the_program_s_own_choice_stays() -> None:
    variables = {"CUDA_VISIBLE_DEVICES": "3"}
    environment.set_gpus(variables, [])
    assert variables == {"CUDA_VISIBLE_DEVICES": "3"}


def test_the_simulated_driver_keeps_a_state_that_was_given(library_dir: Path) -> None:
    variables = {"LD_LIBRARY_PATH": "/opt/lib", "GPULIMIT_SIM_STATE": "/tmp/mine"}
    environment.use_simulated_driver(variables)
    assert variables == {"LD_LIBRARY_PATH": f"{library_dir}/sim:/opt/lib", "GPULIMIT_SIM_STATE": "/tmp/mine"}


def test_options_become_variables_and_win_over_inherited_ones() -> None:
    variables = {"GPULIMIT_MEMORY": "9GiB", "GPULIMIT_TENANT": "mine"}
    given = options(
        "--memory",
        "4GiB",
        "--compute",
        "30",
        "--weight",
        "7",
        "--priority",
        "high",
        "--gang",
        "job",
        "--",
        "true",
    )
    assert run_command.set_quota(variables, given) is False
    assert variables == {
        "GPULIMIT_MEMORY": "4GiB",
        "GPULIMIT_COMPUTE": "30",
        "GPULIMIT_WEIGHT": "7",
        "GPULIMIT_PRIORITY": "high",
        "GPULIMIT_GANG": "job",
        "GPULIMIT_TENANT": "mine",
    }


def test_a_run_without_tenant_is_a_tenant_of_its_own() -> None:
    variables: dict[str, str] = {}
    assert run_command.set_quota(variables, options("--memory", "4GiB", "--", "true")) is True
    assert tenants.MADE_UP.fullmatch(variables["GPULIMIT_TENANT"])


BAD = [
    (("--memory", "4GX"), "--memory", "4GX"),
    (("--memory", "-1"), "--memory", "-1"),
    (("--memory", ""), "--memory", ""),
    (("--memory", "16384"), "--memory", "unit"),
    (("--memory", "0=4GiB,,1=2GiB"), "--memory", "0=4GiB"),
    (("--memory", "101%"), "--memory", "101%"),
    (("--compute", "0"), "--compute", "0"),
    (("--compute", "101"), "--compute", "101"),
    (("--compute", "30.5"), "--compute", "30.5"),
    (("--request", "x"), "--request", "x"),
    (("--request", "50", "--compute", "30"), "--request", "50"),
    (("--weight", "0"), "--weight", "0"),
    (("--priority", "urgent"), "--priority", "urgent"),
    (("--gang", "a/b"), "--gang", "a/b"),
    (("--gang", "none"), "--gang", "write off"),
    (("--tenant", "a/b"), "--tenant", "a/b"),
    (
        (
            "--tenant",
            "..",
        ),
        "--tenant",
        "..",
    ),
]


@pytest.mark.parametrize(("arguments", "flag", "value"), BAD)
def test_a_bad_quota_is_refused_by_flag_value_and_position(
    arguments: tuple[str, ...], flag: str, value: str
) -> None:
    with pytest.raises(QuotaError) as caught:
        run_command.set_quota(
            {},
            options(
                *(f"{k}={v}" for k, v in zip(arguments[::2], arguments[1::2], strict=True)), "--", "true"
            ),
        )
    line = str(caught.value)
    assert line.startswith(f"{flag}: ")
    assert value in line
    assert "at character" in line
    assert "\n" not in line
    assert caught.value.exit_status == 2


def test_a_bad_quota_that_was_inherited_is_refused_by_variable() -> None:
    with pytest.raises(QuotaError, match=r"^GPULIMIT_COMPUTE: "):
        run_command.set_quota({"GPULIMIT_COMPUTE": "lots"}, options("--memory", "4GiB", "--", "true"))


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--", "a", "--b"], ["a", "--b"]),
        (["a", "--", "b"], ["a", "--", "b"]),
        (["--", "a", "--", "b"], ["a", "--", "b"]),
    ],
)
def test_the_program_s_own_arguments_are_left_alone(words: list[str], command: list[str]) -> None:
    assert run_command.program_of(options("--memory", "1GiB", *words).command) == command


@pytest.mark.parametrize("words", [[], ["--"]])
def test_a_missing_program_is_a_usage_error(words: list[str]) -> None:
    with pytest.raises(UsageError):
        run_command.program_of(words)
