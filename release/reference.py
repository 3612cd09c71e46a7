# SPDX-License-Identifier: Apache-2.0
"""Writes docs/commands.md from the command line itself, so that every command and option stands on a page.

python -m release.reference            # rewrites the page
python -m release.reference --check    # fails if the page is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator

from limiter import cli
from release import commands
from release.version import ROOT

PAGE = ROOT / "docs" / "commands.md"
WIDTH = 120
HEAD = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `python -m release.reference`; do not edit. -->
# Commands

All commands of `gpulimit` with all their options, as in `gpulimit COMMAND --help`. A value in parentheses is
the default.
"""


def expanded(action: argparse.Action) -> str:
    """Return an argument's help with its %(default)s and %% resolved."""
    values = {name: value for name, value in vars(action).items() if value is not argparse.SUPPRESS}
    return (action.help or "") % values


def value_of(action: argparse.Action) -> str:
    """Return the placeholder of an argument's value; "" for a flag."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar is None and action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.metavar or action.dest.upper()


def label(action: argparse.Action) -> str:
    """Return an argument as it is typed: "--memory Q", "NAME"."""
    return " ".join(filter(None, (", ".join(action.option_strings), value_of(action))))


def cell(text: str) -> str:
    """Return text for a cell of a table, without markup of its own."""
    return re.sub(r"([|<>*])", r"\\\1", " ".join(text.split()))


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the documented arguments of a parser, without its sub-commands and --help."""
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    return [
        action
        for action in parser._actions
        if not isinstance(action, hidden) and action.help is not argparse.SUPPRESS
    ]


def row(action: argparse.Action) -> str:
    """Return an argument's line of the table."""
    needed = " (required)" if action.option_strings and action.required else ""
    typed = label(action).replace("|", "\\|")
    return f"| `{typed}` | {cell(expanded(action))}{needed} |"


def section(title: str, level: int, summary: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a command's lines, and below them those of its sub-commands."""
    summary = cell(summary).rstrip(".")
    yield from ("", f"{'#' * level} {title}", "", f"{summary[:1].upper()}{summary[1:]}.")
    if rows := arguments(parser):
        yield from ("", "| argument | meaning |", "| --- | --- |", *map(row, rows))
    if parser.epilog:
        text = parser.epilog % {"prog": parser.prog} if "%(prog)" in parser.epilog else parser.epilog
        yield from ("", *(f"    {line}".rstrip() for line in folded(text)))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                yield from section(
                    f"{title} {name}", level + 1, helps.get(name) or below.description or "", below
                )


def folded(text: str) -> list[str]:
    """Return the lines of an epilog; one that is a single line is folded at WIDTH."""
    text = text.strip("\n")
    return text.split("\n") if "\n" in text else textwrap.wrap(text, WIDTH)


def document() -> str:
    """Return the whole page."""
    lines = [HEAD.rstrip("\n")]
    for name, parser in commands.parsers().items():
        lines += section(f"gpulimit {name}", 2, cli.COMMANDS[name], parser)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="release.reference", description="Renew docs/commands.md.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if the page is out of date"
    )
    if not parser.parse_args().check:
        PAGE.write_text(document(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != document():
        print("docs/commands.md is out of date: run `python -m release.reference`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
