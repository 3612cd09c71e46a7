# SPDX-License-Identifier: Apache-2.0
"""Runs one program transparently: same terminal, same signals, same exit status."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence

from limiter.errors import GpulimitError

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# si_code of a signal from the kernel. The terminal sends it to the whole foreground group, so the child has
# it already.
SI_KERNEL = 0x80


class CannotStart(GpulimitError):
    """The program does not exist (127) or cannot be executed (126); the numbers are a shell's."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"cannot start {program!r}: {error.strerror}")
        self.exit_status = 127 if isinstance(error, FileNotFoundError) else 126


def exit_status(wait_status: int) -> int:
    """Return a shell's number for a wait status: the exit status, or 128 + the signal's number."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    tick: Callable[[], None] | None = None,
    tick_s: float = 0.05,
) -> int:
    """Run `command` to its end and return its exit status.

    Signals that arrive meanwhile are passed to the program, once.  `tick` is called every `tick_s` while it
    runs. Raises CannotStart.
    """
    watched: set[int] = {signal.SIGCHLD, *FORWARDED}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if inherited as ignored, the exit status would be lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        pid = spawn(command, environment, before)
        return watch(pid, watched, tick, tick_s)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def spawn(command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> int:
    # Python ignores these two; a program expects them at their defaults.
    defaults = (signal.SIGPIPE, signal.SIGXFSZ)
    try:
        return os.posix_spawnp(
            command[0], list(command), dict(environment), setsigmask=mask, setsigdef=defaults
        )
    except OSError as error:
        raise CannotStart(command[0], error) from error


def watch(pid: int, watched: set[int], tick: Callable[[], None] | None, tick_s: float) -> int:
    while True:
        info = signal.sigtimedwait(watched, tick_s) if tick else signal.sigwaitinfo(watched)
        if info is not None and info.si_signo in FORWARDED and info.si_code != SI_KERNEL:
            # The child is not reaped yet, so the pid is still its own.
            os.kill(pid, info.si_signo)
        if tick:
            tick()
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return exit_status(status)
