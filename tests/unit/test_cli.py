# SPDX-License-Identifier: Apache-2.0
"""The command line as such: help, unknown commands, exit status, and how soon it answers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from limiter import cli


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in cli.COMMANDS)


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage:" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["frobnicate"]) == 2
    assert "'frobnicate'" in capsys.readouterr().err


def test_the_daemon_s_help_is_its_own(run_process) -> None:
    done = run_process([sys.executable, "-m", "limiter", "daemon", "--help"], env=dict(os.environ), expect=0)
    assert done.stdout.startswith("usage: gpulimit daemon")


@pytest.mark.parametrize("name", [name for name in cli.COMMANDS if name not in cli.PROGRAMS])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: gpulimit {name}")
    summary = (cli.load_command(name).__doc__ or "").splitlines()[0]
    assert summary.split(";")[0] in " ".join(shown.split())


def test_the_library_s_path_comes_without_heavy_imports(run_process, tmp_path) -> None:
    (tmp_path / "libgpulimit.so").touch()
    env = dict(os.environ) | {"GPULIMIT_LIB_DIR": str(tmp_path)}
    argv = [sys.executable, "-X", "importtime", "-m", "limiter", "lib"]
    done = run_process(argv, env=env, expect=0)
    assert done.stdout == f"{tmp_path}/libgpulimit.so\n"
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"cffi", "limiter._native", "asyncio", "aiohttp", "subprocess", "ctypes"}


def test_version_verbose_says_what_this_is(gpulimit, built) -> None:
    done = gpulimit("version", "--verbose", "--sim", expect=0)
    said = {line[:15].strip(): line[15:].strip() for line in done.stdout.splitlines()[1:]}
    note = subprocess.run(["readelf", "-n", built.library], capture_output=True, text=True, check=True).stdout
    digits, _, path = said["library"].partition(" ")
    assert f"Build ID: {digits}" in note
    assert path == str(built.lib / "libgpulimit.so")
    assert said["segment layout"].isdecimal()
    assert int(said["hooks"].split()[0]) > 50
    assert said["driver"].startswith("SIMULATED")


def test_a_missing_library_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    monkeypatch.setenv("GPULIMIT_LIB_DIR", str(tmp_path))
    assert cli.main(["lib"]) == 1
    assert capsys.readouterr().err.startswith(f"gpulimit: {tmp_path}/libgpulimit.so is missing")


def test_a_reader_that_leaves_early_is_no_error(run_process) -> None:
    command = f"{sys.executable} -m limiter --help | true; exit ${{PIPESTATUS[0]}}"
    done = run_process(["bash", "-c", command], env=dict(os.environ))
    assert "Traceback" not in done.stderr
