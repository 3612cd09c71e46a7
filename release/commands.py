# SPDX-License-Identifier: Apache-2.0
"""The whole command line as one argparse tree, from which man pages and completions are made."""

from __future__ import annotations

import argparse
import runpy
import sys
import warnings
from typing import NoReturn
from unittest import mock

from limiter import cli


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    return {name: parser_of(name) for name in cli.COMMANDS}


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return a command's parser."""
    package = cli.PROGRAMS.get(name)
    if package is None:
        return cli.build_parser(name, cli.load_command(name))
    return parser_of_program(package)


class FoundParser(BaseException):
    """Carries the parser out of a program; no program catches it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def parser_of_program(package: str) -> argparse.ArgumentParser:
    """Start a program as `python -m` does, up to its argument parsing; return its parser."""

    def found(parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        raise FoundParser(parser)

    with (
        warnings.catch_warnings(),
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", found),
        mock.patch.object(sys, "argv", [package, "--help"]),
    ):
        # runpy warns if the caller has loaded the module already. Harmless: it runs only up to its argument
        # parsing.
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            runpy.run_module(package, run_name="__main__", alter_sys=True)
        except FoundParser as carried:
            return carried.parser
    raise RuntimeError(f"{package} does not read its arguments with argparse")


def tree() -> argparse.ArgumentParser:
    """Return `gpulimit` with its commands as sub-parsers."""
    root = argparse.ArgumentParser(
        prog="gpulimit",
        description="Memory and compute quotas for processes that share one NVIDIA GPU.",
        allow_abbrev=False,
    )
    root.add_argument("--version", action="store_true", help="print the version")
    commands = root.add_subparsers(metavar="COMMAND", dest="command")
    for name, parser in parsers().items():
        commands.add_parser(
            name,
            parents=[parser],
            add_help=False,
            help=cli.COMMANDS[name],
            description=parser.description,
            epilog=parser.epilog,
            formatter_class=parser.formatter_class,
        )
    return root
