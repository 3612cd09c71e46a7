# SPDX-License-Identifier: Apache-2.0
"""Options: one table, four sources, and nothing unknown goes unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypervisor.config import settings as config
from hypervisor.errors import ConfigError

GIB = 1 << 30


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "gpulimit.toml"
    path.write_text(text)
    return str(path)


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    path = write(tmp_path, 'quantum = "5ms"\ntick = "3ms"\nrun_ahead = "2ms"\n')
    environ = {"GPULIMITD_QUANTUM": "6ms", "GPULIMITD_TICK": "4ms"}
    settings = config.load(["--config", path, "--quantum", "7ms"], environ).settings
    assert (settings.quantum, settings.tick, settings.run_ahead) == (7_000_000, 4_000_000, 2_000_000)
    assert settings.metrics_addr == "0.0.0.0:9402"


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    path = write(tmp_path, 'admission = "deny"\n')
    assert config.load([], {"GPULIMITD_CONFIG": path}).settings.admission == "deny"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('socet = "/x"', "socet: no such option"),
        ('quantum = "10"', "quantum: '10' is not"),
        ('quantum = "1h"', "quantum: '1h' is not a duration"),
        ('quantum = "1000ms"', "quantum: '1000ms' is not between 1ms and 100ms"),
        ("quantum = 1.5", "quantum: 1.5 is not text or a whole number"),
        ("quantum = true", "quantum: True is not text or a whole number"),
        ('admission = "maybe"', "admission: 'maybe' is none of propose, fixed, deny"),
        ('metrics_addr = "9402"', "metrics_addr: '9402' is not HOST:PORT"),
        ("memory_overcommit = 0", "memory_overcommit: '0' is not a number between 1 and 1000"),
        ('[tenants.a]\nmemroy = "4GiB"', "tenants.a.memroy: is none of memory, compute"),
        ('[tenants.a]\nmemory = "4GX"', 'tenants.a.memory: "4GX" at character 2: unknown unit'),
        ('[tenants.a]\nrequest = "lots"', 'tenants.a.request: "lots"'),
        ('[tenants.a]\ngang = "a b"', 'tenants.a.gang: "a b" at character 2: a name is of letters'),
        ('[default]\ngang = "job"', "default.gang: 'job' is a name; write off or auto"),
        ('[tenants."a/b"]\nmemory = "4GiB"', "tenants.a/b: is not a tenant's name"),
        ("tenants = 3", "tenants: is not a table"),
        ("default = 3", "default: is not a table"),
        ("[default]\nmemory = [1]", "default.memory: [1] is not text or a whole number"),
        ('tcp_addr = "127.0.0.1:1"', "tcp_addr: needs tcp_token_file or tcp_register_token_file"),
        ("= 3", "--config"),
    ],
)
def test_what_cannot_be_used_is_refused_naming_key_and_file(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text + "\n")
    with pytest.raises(ConfigError) as refusal:
        config.load(["--config", path], {})
    assert expected in str(refusal.value)
    if "tcp_addr" not in text:
        assert path in str(refusal.value)
    assert refusal.value.exit_status == 2


def test_unknown_variables_are_refused() -> None:
    with pytest.raises(ConfigError, match="environment: GPULIMITD_QANTUM: no such option"):
        config.load([], {"GPULIMITD_QANTUM": "5ms"})


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/x\.toml: No such file"):
        config.load(["--config", "/nowhere/x.toml"], {})


def test_quotas_are_read_with_the_parser_of_the_library(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[default]\nmemory = "10%"\ncompute = 20\n'
        '[tenants.team-a]\nmemory = "4GiB"\nrequest = 30\npriority = "high"\ngang = "job"\n',
    )
    quotas = config.load(["--config", path], {}).quotas
    assert quotas.default.memory_bytes(80 * GIB) == 8 * GIB
    assert quotas.default.compute_percent() == 20
    team = quotas.tenants["team-a"]
    assert (team.request_percent, team.priority, team.weight) == (30, "high", None)
    assert team.gang == "job"
    Path(path).write_text('[tenants.team-a]\nmemory = "5GiB"\n')
    assert config.reread_quotas(Path(path)).tenants["team-a"].memory_bytes(80 * GIB) == 5 * GIB


def test_every_option_is_in_the_help_with_its_default() -> None:
    shown = " ".join(config.build_parser().format_help().split())
    for name, row in config.TABLE.items():
        assert f"{config.flag_of(name)} X" in shown
        assert f"({row.metadata['default'] or 'none'})" in shown
