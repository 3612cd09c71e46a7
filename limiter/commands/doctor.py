# SPDX-License-Identifier: Apache-2.0
"""Check that quotas can hold on this machine; the exit status is 1 if you must change something.

examples:
  gpulimit doctor
  gpulimit doctor --sim        # without a GPU: everything except the real driver
  gpulimit doctor --node       # on the daemon's node: can it serve containers?
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator

from limiter import environment
from limiter.doctor import driver, machine, node
from limiter.doctor.check import Check

COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sim", action="store_true", help="check with the simulated driver")
    parser.add_argument(
        "--node", action="store_true", help="check the node for containers instead: rights, folders, kubelet"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    checks = []
    for check in all_checks(sim=options.sim, is_node=options.node):
        checks.append(check)
        if not options.json:
            print(describe(check, colour=sys.stdout.isatty()), flush=True)
    healthy = all(check.level != "fail" for check in checks)
    if options.json:
        print(json.dumps({"healthy": healthy, "checks": [dataclasses.asdict(check) for check in checks]}))
    return 0 if healthy else 1


def all_checks(*, sim: bool, is_node: bool = False) -> Iterator[Check]:
    """Run every check, cheap ones first."""
    variables = dict(os.environ)
    variables.pop("LD_PRELOAD", None)
    if sim:
        environment.use_simulated_driver(variables)
    if is_node:
        yield from node.checks(variables)
        return
    yield from machine.checks()
    yield from driver.checks(variables)


def describe(check: Check, *, colour: bool) -> str:
    """Return a check as one line, and its remedy as a second."""
    level = f"{check.level:<4}"
    if colour:
        level = f"\033[{COLOURS[check.level]}m{level}\033[0m"
    lines = [f"{level}  {check.name}: {check.text}"]
    if check.advice:
        lines.append(f"      -> {check.advice}")
    return "\n".join(lines)
