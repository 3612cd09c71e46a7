# SPDX-License-Identifier: Apache-2.0
"""Processes of a tenant that share device memory: memory_program.py under the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MIB = 1 << 20
PROGRAM = Path(__file__).parent / "memory_program.py"


class Member:
    """A running memory_program.py."""

    def __init__(self, process: Any) -> None:
        self.process = process
        assert self.hear() == "ready"

    def tell(self, command: str, *arguments: Any) -> None:
        self.process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.stderr.read()}"
        return json.loads(line)

    def __call__(self, command: str, *arguments: Any) -> Any:
        self.tell(command, *arguments)
        return self.hear()

    def info(self) -> tuple[int, int]:
        free, total = self("info")
        return free, total

    def used(self) -> int:
        """Return the tenant's use as this process is told."""
        free, total = self.info()
        return total - free

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)
