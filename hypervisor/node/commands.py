# SPDX-License-Identifier: Apache-2.0
"""Commands to workers: numbered, delivered at least once, dropped when the next request acknowledges them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, get_args

CommandName = Literal["suspend", "resume", "refresh", "drain", "checkpoint", "restore"]
NAMES: tuple[str, ...] = get_args(CommandName)
MAX_COMMANDS = 64
"""Bound on waiting commands: a worker that never asks must not fill memory. The oldest are dropped first."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command for a worker. It must be harmless if executed twice."""

    number: int
    name: CommandName
    argument: str = ""


class CommandQueue:
    """The commands of one worker."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting: deque[Command] = deque(maxlen=MAX_COMMANDS)

    def post(self, name: CommandName, argument: str = "") -> Command:
        """Add a command; it replaces the newest waiting one if both are the same."""
        if self._waiting and (self._waiting[-1].name, self._waiting[-1].argument) == (name, argument):
            self._waiting.pop()
        self._last += 1
        command = Command(self._last, name, argument)
        self._waiting.append(command)
        return command

    def next(self, after: int) -> Command | None:
        """Return the oldest command above `after`, which acknowledges all up to it."""
        while self._waiting and self._waiting[0].number <= after:
            self._waiting.popleft()
        return self._waiting[0] if self._waiting else None

    def __len__(self) -> int:
        return len(self._waiting)
