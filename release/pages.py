# SPDX-License-Identifier: Apache-2.0
"""Writes man pages and shell completions, made of the command line itself so that they cannot be out of date.

python -m release.pages --out DIR     # DIR/man/*.1, *.8; DIR/bash/gpulimit; DIR/zsh/_gpulimit
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import shtab

from limiter import cli
from release import commands
from release.version import epoch_s, version

SECTIONS = {"daemon": 8, "guest-agent": 8, "guest-collector": 8}
"""Manual sections of the commands that run as services; the section of all others is 1."""


def escape(text: str) -> str:
    """Return text escaped for troff; a dash stays an ASCII dash, as options need."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\`")
    return "\n".join("\\&" + line if line.startswith((".", "\\(aq")) else line for line in text.split("\n"))


def verbatim(text: str) -> Iterator[str]:
    yield ".nf"
    yield escape(text.rstrip())
    yield ".fi"


def heading(name: str, section: int, summary: str) -> Iterator[str]:
    title = name.replace(" ", "-")
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch_s()))
    yield f'.TH {escape(title.upper())} {section} {escape(date)} "gpulimit {escape(version())}" gpulimit'
    yield f".SH NAME\n{escape(title)} \\- {escape(summary)}"


def expanded(action: argparse.Action) -> str:
    """Return an option's help with its %(default)s and %% resolved."""
    values = {name: value for name, value in vars(action).items() if value is not argparse.SUPPRESS}
    return (action.help or "") % values


def option(action: argparse.Action) -> Iterator[str]:
    value = action.metavar or (action.dest if action.nargs != 0 else "")
    if isinstance(value, tuple):
        value = " ".join(value)
    if action.choices is not None and not action.metavar:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    names = ", ".join(f"\\fB{escape(name)}\\fR" for name in action.option_strings)
    shown = f" \\fI{escape(value)}\\fR" if value and action.nargs != 0 else ""
    yield f".TP\n{names}{shown}".replace("\n ", "\n")
    yield escape(expanded(action))


def body(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield synopsis and options of a parser and, below it, of its sub-commands."""
    usage = parser.format_usage().removeprefix("usage: ")
    yield ".SH SYNOPSIS"
    yield from verbatim(usage)
    if parser.description:
        yield f".SH DESCRIPTION\n{escape(parser.description)}"
    yield ".SH OPTIONS"
    nested: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            nested.update(action.choices)
        elif action.help is not argparse.SUPPRESS:
            yield from option(action)
    for name, below in nested.items():
        yield f".SS {escape(name)}"
        yield from verbatim(below.format_usage().removeprefix("usage: "))
        for action in below._actions:
            yield from option(action)
    if parser.epilog:
        yield ".SH NOTES"
        yield from verbatim(
            parser.epilog % {"prog": parser.prog} if "%(prog)" in parser.epilog else parser.epilog
        )


def page_of(name: str, parser: argparse.ArgumentParser) -> tuple[str, str]:
    """Return file name and text of one command's page."""
    section = SECTIONS.get(name, 1)
    lines = [*heading(f"gpulimit {name}", section, cli.COMMANDS[name]), *body(parser)]
    lines.append(".SH SEE ALSO\n.BR gpulimit (1)")
    return f"gpulimit-{name}.{section}", "\n".join(lines) + "\n"


def main_page() -> str:
    """Return the page of `gpulimit` itself."""
    lines = list(heading("gpulimit", 1, "memory and compute quotas for processes that share one NVIDIA GPU"))
    lines += [".SH SYNOPSIS", "\\fBgpulimit\\fR \\fICOMMAND\\fR [options]", ".SH COMMANDS"]
    for name, text in cli.COMMANDS.items():
        lines += [
            f".TP\n\\fB{escape(name)}\\fR, see \\fBgpulimit\\-{escape(name)}\\fR({SECTIONS.get(name, 1)})",
            escape(text),
        ]
    lines += [".SH EXAMPLES", *verbatim("LD_PRELOAD=$(gpulimit lib) GPULIMIT_MEMORY=4GiB python train.py")]
    return "\n".join(lines) + "\n"


def write(out: Path) -> None:
    """Write all pages and completions below `out`."""
    with mock.patch.dict(os.environ, COLUMNS="80"):  # argparse folds texts at the terminal's width
        write_folded(out)


def write_folded(out: Path) -> None:
    for folder in ("man", "bash", "zsh"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    (out / "man" / "gpulimit.1").write_text(main_page(), encoding="utf-8")
    for name, parser in commands.parsers().items():
        file_name, text = page_of(name, parser)
        (out / "man" / file_name).write_text(text, encoding="utf-8")
    tree = commands.tree()
    (out / "bash" / "gpulimit").write_text(shtab.complete(tree, "bash"), encoding="utf-8")
    (out / "zsh" / "_gpulimit").write_text(shtab.complete(tree, "zsh"), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="release.pages", description="Write man pages and completions.")
    parser.add_argument("--out", type=Path, required=True)
    write(parser.parse_args().out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
