# SPDX-License-Identifier: Apache-2.0
"""Drives tests/c/waiting/memory_client.c, a program that takes and gives device memory as it is told."""

from __future__ import annotations

import subprocess

OK, OUT_OF_MEMORY = 0, 2
KINDS = {"plain": 1, "pitched": 2, "managed": 3, "array": 4, "mipmap": 5, "async": 6, "pool": 7, "vmm": 8}
PLAIN = KINDS["plain"]


class MemoryClient:
    """A running tests/c/waiting/memory_client.c."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self.hear() == [OK]

    def say(self, *words: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self) -> list[float]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=10)
        return [float(word) for word in line.split()]

    def ask(self, *words: object) -> list[float]:
        self.say(*words)
        return self.hear()
