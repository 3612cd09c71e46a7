# SPDX-License-Identifier: Apache-2.0
"""`gpulimit`: finds the command and runs it.

Each command is one module in `limiter.commands`, and only the module of the named command is imported.  It
has `add_arguments(parser)`, `run(options) -> int`, and a docstring: the first line is the help, the rest has
examples.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol, cast

from limiter.errors import GpulimitError

COMMANDS = {
    "run": "run a program under a memory and compute quota",
    "lib": "print the path of libgpulimit.so, for LD_PRELOAD",
    "status": "show tenants, their memory and GPU time",
    "top": "watch cards and tenants, of this node or of many",
    "quota": "show or change a tenant's quota",
    "tenant": "suspend or resume a tenant",
    "daemon": "run the node daemon",
    "guest-agent": "serve a virtual machine's GPU metrics to its host",
    "guest-collector": "collect GPU metrics from this node's virtual machines",
    "load": "run the built-in workload",
    "webhook": "change Kubernetes pods before they are stored",
    "cdi": "write a CDI specification for containers",
    "sim": "serve the metrics of simulated nodes",
    "demo": "show a daemon and three tenants, on a simulated GPU if there is no real one",
    "doctor": "check that quotas can hold on this machine",
    "version": "print the version",
}


PROGRAMS = {
    "daemon": "hypervisor",
    "sim": "hypervisor.simulator",
    "top": "hypervisor.top",
    "guest-agent": "hypervisor.guests.agent",
    "guest-collector": "hypervisor.guests.collector_main",
    "webhook": "hypervisor.webhook",
}
"""Commands of another package.  The package replaces this process; it is not imported."""


class CliCommand(Protocol):
    """Interface of a module under limiter.commands."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace) -> int: ...


def usage() -> str:
    """Return the text of `gpulimit --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: gpulimit COMMAND [options]",
            "",
            "Memory and compute quotas for processes that share one NVIDIA GPU.",
            "",
            *lines,
            "",
            "`gpulimit COMMAND --help` explains a command.  The environment can set a quota without it:",
            "  LD_PRELOAD=$(gpulimit lib) GPULIMIT_MEMORY=4GiB GPULIMIT_COMPUTE=30 python train.py",
        ]
    )


def load_command(name: str) -> CliCommand:
    """Import the module of a command."""
    return cast(CliCommand, importlib.import_module(f"limiter.commands.{name}"))


def build_parser(name: str, command: CliCommand) -> argparse.ArgumentParser:
    """Return the parser of one command; its module's docstring is the help text."""
    summary, _, rest = (command.__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog=f"gpulimit {name}",
        description=summary,
        epilog=rest.strip() or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    return parser


def become(package: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a package's program."""
    # -P: a folder of that name in the current folder must not be taken for the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", package, *arguments])  # noqa: S606


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; return its exit status."""
    if not arguments:
        print(usage(), file=sys.stderr)
        return 2
    name = arguments[0]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name == "--version":
        name = "version"
    if name not in COMMANDS:
        print(f"gpulimit: no command {name!r}; try `gpulimit --help`", file=sys.stderr)
        return 2
    if name in PROGRAMS:
        become(PROGRAMS[name], arguments[1:])
    command = load_command(name)
    return command.run(build_parser(name, command).parse_args(list(arguments[1:])))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    try:
        return dispatch(sys.argv[1:] if arguments is None else arguments)
    except GpulimitError as error:
        print(f"gpulimit: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has ended.  Without this, Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
