# SPDX-License-Identifier: Apache-2.0
"""`gpulimit run` must not be noticed between a program and who started it."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from limiter import child

ENV = dict(os.environ)


@pytest.mark.parametrize("status", [0, 1, 2, 77, 255])
def test_the_exit_status_is_the_program_s(status: int) -> None:
    assert child.run(["sh", "-c", f"exit {status}"], ENV) == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_program_killed_by_a_signal_gives_128_and_its_number(number: signal.Signals) -> None:
    assert child.run(["sh", "-c", f"kill -{number.value} $$"], ENV) == 128 + number


def test_a_program_that_is_not_there_gives_127() -> None:
    with pytest.raises(child.CannotStart, match="no-such-program") as caught:
        child.run(["no-such-program"], ENV)
    assert caught.value.exit_status == 127


def test_a_file_that_cannot_be_executed_gives_126(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("not a program")
    with pytest.raises(child.CannotStart) as caught:
        child.run([str(path)], ENV)
    assert caught.value.exit_status == 126


def test_a_quick_program_is_collected_though_it_ended_before_we_waited() -> None:
    for _ in range(20):
        assert child.run(["true"], ENV) == 0


def test_the_tick_is_called_while_the_program_runs() -> None:
    ticks = []
    child.run(["sleep", "0.3"], ENV, tick=lambda: ticks.append(1), tick_s=0.05)
    assert len(ticks) >= 3


def test_signal_mask_and_dispositions_are_the_caller_s(tmp_path: Path) -> None:
    child.run(["sh", "-c", f"cat /proc/self/status > {tmp_path}/status"], ENV)
    lines = dict(
        line.split(":\t", 1) for line in (tmp_path / "status").read_text().splitlines() if ":\t" in line
    )
    assert int(lines["SigBlk"], 16) == 0
    assert not int(lines["SigIgn"], 16) & 1 << (signal.SIGPIPE - 1)


WRAPPER = """
import sys
from limiter import child
sys.exit(child.run(sys.argv[1:], __import__("os").environ))
"""


def start_wrapper(start_process, tmp_path: Path, script: str) -> subprocess.Popen[str]:
    ready = tmp_path / "ready"
    program = f"{script}; touch {ready}; while :; do sleep 0.05; done"
    process = start_process([sys.executable, "-c", WRAPPER, "sh", "-c", program], env=ENV)
    wait_for(ready, process)
    return process


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(start_process, tmp_path: Path, number: signal.Signals) -> None:
    process = start_wrapper(start_process, tmp_path, f"trap 'echo got; exit 9' {number.value}")
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == ("got\n", 9)


def test_a_program_may_take_a_signal_and_go_on(start_process, tmp_path: Path) -> None:
    process = start_wrapper(start_process, tmp_path, "trap 'echo once' INT; trap 'exit 3' TERM")
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == ("once\n", 3)


def test_no_child_is_left_when_sigchld_was_ignored(run_process) -> None:
    script = f"import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n{WRAPPER}"
    assert run_process([sys.executable, "-c", script, "sh", "-c", "exit 5"], env=ENV).returncode == 5


def test_ctrl_c_on_a_terminal_reaches_the_program_once(start_process, tmp_path: Path) -> None:
    """The terminal signals the whole foreground group; passed on as well, the program would get it twice."""
    controller, terminal = pty.openpty()
    ready, log = tmp_path / "ready", tmp_path / "log"
    program = (
        f"trap 'echo int >>{log}' INT; touch {ready}; while [ ! -e {tmp_path}/end ]; do sleep 0.05; done"
    )
    process = start_process(
        [sys.executable, "-c", WRAPPER, "sh", "-c", program],
        env=ENV,
        stdin=terminal,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    wait_for(ready, process)
    os.write(controller, b"\x03")
    wait_for(log, process)
    time.sleep(0.3)
    (tmp_path / "end").touch()
    assert process.wait(timeout=20) == 0
    os.close(controller)
    assert log.read_text() == "int\n"
