# SPDX-License-Identifier: Apache-2.0
"""Man pages and completions tell what the command line is, all of it."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from limiter import cli

pytest.importorskip("shtab")

from release import commands, pages

ASK_BASH = r"""
source "$1"
COMP_WORDS=("${@:2}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_LINE="${COMP_WORDS[*]}"; COMP_POINT=${#COMP_LINE}
complete -p gpulimit >/dev/null || exit 1
_shtab_gpulimit
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    pages.write(folder)
    return folder


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield all long options of a parser and of those below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from options_of(below)
        elif action.help is not argparse.SUPPRESS:
            yield from (name for name in action.option_strings if name.startswith("--"))


def test_every_command_has_a_parser() -> None:
    assert set(commands.parsers()) == set(cli.COMMANDS)
    assert "--quantum" in set(options_of(commands.parsers()["daemon"]))


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_a_page_names_every_option(written: Path, name: str) -> None:
    (page,) = (written / "man").glob(f"gpulimit-{name}.[18]")
    text = page.read_text().replace("\\-", "-")
    for option in options_of(commands.parsers()[name]):
        assert f"\\fB{option}" in text or f", {option}" in text, option
    assert cli.COMMANDS[name].replace("'", "\\(aq") in text


def test_the_main_page_names_every_command(written: Path) -> None:
    text = (written / "man" / "gpulimit.1").read_text().replace("\\-", "-")
    for name in cli.COMMANDS:
        assert f"\\fBgpulimit-{name}\\fR" in text


def test_man_reads_the_pages(written: Path) -> None:
    if shutil.which("man") is None or shutil.which("lexgrog") is None:
        pytest.skip("SKIPPED: not installed: man-db; .ci/run installs what is needed")
    for page in sorted((written / "man").iterdir()):
        argv = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page]
        done = subprocess.run(
            argv, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "MANWIDTH": "200"}, check=True
        )
        assert done.stderr == "", page.name
        subprocess.run(["lexgrog", page], capture_output=True, check=True)


def complete(written: Path, *words: str) -> set[str]:
    argv = ["bash", "-c", ASK_BASH, "ask", str(written / "bash" / "gpulimit"), *words]
    return set(subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout.split())


def test_bash_completes_commands_and_options(written: Path) -> None:
    assert complete(written, "gpulimit", "") >= set(cli.COMMANDS)
    assert complete(written, "gpulimit", "do") == {"doctor"}
    assert complete(written, "gpulimit", "quota", "s") == {"set", "show"}
    for name, parser in commands.parsers().items():
        own = {action for action in options_of(parser) if "--" in action}
        offered = complete(written, "gpulimit", name, "--")
        nested = any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)
        assert nested or own <= offered, name


def test_zsh_loads_its_completion(written: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("SKIPPED: not installed: zsh; .ci/run installs what is needed")
    folder = written / "zsh"
    script = f"""
    fpath=({folder} $fpath)
    autoload -Uz compinit && compinit -u -d {written}/dump
    whence -w _gpulimit && zsh -n {folder}/_gpulimit
    """
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "_gpulimit: function" in done.stdout
    text = (folder / "_gpulimit").read_text()
    for name, parser in commands.parsers().items():
        for option in options_of(parser):
            assert option in text, (name, option)
