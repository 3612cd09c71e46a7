# SPDX-License-Identifier: Apache-2.0
"""A terminal of the tests' own: a program on a pty, and what it has drawn, by a VT100 emulator."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte
import pytest

DEADLINE_S = 40.0
"""Machines that run tests are busy."""


def take_terminal() -> None:
    """Make standard input the terminal that Ctrl-C and a hang-up come from."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A running program. Everything that it writes is drawn on `screen`."""

    def __init__(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str], columns: int, lines: int
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = bytearray()
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        variables = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", **env}
        for name in ("COLUMNS", "LINES"):
            variables.pop(name, None)  # programs believe these before the terminal itself
        self.process = subprocess.Popen(
            [str(a) for a in argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=variables,
            start_new_session=True,
            preexec_fn=take_terminal,
            close_fds=True,
        )
        os.close(slave)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=DEADLINE_S)
        self.hang_up()

    def hang_up(self) -> None:
        """Close the terminal under the program."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def read(self, seconds: float) -> None:
        """Draw what comes within some time; stop when nothing more comes."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self._master], [], [], min(left, 0.05))
            if ready:
                try:
                    data = os.read(self._master, 1 << 16)
                except OSError:  # the program has closed its side
                    return
                self.raw += data
                # pyte knows no private modes with ":" and no kitty keyboard protocol.
                self._stream.feed(data)

    def settings(self) -> list[object]:
        """Return how the terminal treats input and output."""
        return list(termios.tcgetattr(self._master))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, check: Callable[[str], object], *, within_s: float = DEADLINE_S) -> str:
        """Return the screen's text when it is as wanted."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            self.read(0.1)
            if check(self.text):
                return self.text
            if self.process.poll() is not None:
                self.read(0.2)
                if check(self.text):
                    return self.text
                pytest.fail(f"the program ended with {self.process.returncode}:\n{self.text}", pytrace=False)
        pytest.fail(f"never shown:\n{self.text}", pytrace=False)

    def wait(self) -> int:
        """Draw until the program ends; return its exit status."""
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.1)
        self.read(0.2)
        return self.process.wait(timeout=1)

    def colours(self) -> set[tuple[str, str]]:
        """Return (text, background) colours of all cells that show something."""
        found = set()
        for row in self.screen.buffer.values():
            for cell in row.values():
                ink, ground = cell.fg, cell.bg if cell.bg != "default" else "default-reversed"
                if cell.data.strip():
                    found.add((ground, ink) if cell.reverse else (ink, ground))
        return found
