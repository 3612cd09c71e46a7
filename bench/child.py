# SPDX-License-Identifier: Apache-2.0
"""Child process that runs workloads on command (tenant.py): the side of the program that measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class Child:
    """One such process. Commands and answers are JSON lines."""

    def __init__(self, env: dict[str, str], program: str = "tenant.py") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / program)],
            env=os.environ | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, command: dict[str, Any]) -> None:
        """Send one command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next answer. Other output is skipped. Raises RuntimeError if the process has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                return dict(json.loads(line[7:]))
        raise RuntimeError(f"a child ended early, status {self.process.wait()}")

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self.tell(command)
        return self.answer()

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def together(children: Sequence[Child], commands: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run one command in each process, all beginning at the same moment. Return the answers."""
    at = time.monotonic() + 0.2
    for child, command in zip(children, commands, strict=True):
        child.tell(command | {"at": at})
    return [child.answer() for child in children]


def prepare(children: Sequence[Child], names: Sequence[str]) -> None:
    """Prepare workloads in all processes at the same time."""
    for name in names:
        for child in children:
            child.tell({"prepare": name})
        for child in children:
            child.answer()
